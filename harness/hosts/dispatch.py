"""Sends batches to hosts, and takes each answer once.

    with connected("dask://head:8786") as hosts:
        agreed, machines = agree_on_hosts(hosts, asked, named)

Dask does again elsewhere what a host was at when it was lost: an answer is all of a
batch or none of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING

import msgspec

from gradwatch.harness.agreement.remote import unjudged
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.hosts.batches import able, lacking, merged, split
from gradwatch.harness.hosts.identity import Offer, difference, identity, mixture
from gradwatch.harness.project.documents import packed
from gradwatch.harness.project.requested import Required
from gradwatch.harness.workers.child import Failed

if TYPE_CHECKING:
    from gradwatch.harness.hosts.dask import Cluster

#: Seconds until it is said that no host offers what is asked: hosts of a cluster come
#: one after the other. Less than the minute that is promised.
PATIENCE = 45.0
LOOK = 1.0  # seconds between two looks at which hosts are there


def connected(address: str) -> Cluster:
    """The hosts at an address.

    Raises:
        ValueError: It is none; the message says what one looks like.
        Required: Nobody answers there.
    """
    scheme, _, place = address.partition("://")
    if scheme == "dask" and place:
        from gradwatch.harness.hosts.dask import Cluster  # an extra, for who asks

        return Cluster(place)
    over_ssh = " (`dask ssh` starts a cluster over SSH)" if scheme == "ssh" else ""
    raise ValueError(f"{address!r} is not local or dask://HOST:PORT{over_ssh}")


def agree_on_hosts(
    hosts: Cluster,
    asked: Asked,
    named: Collection[str] = (),
    progress: Callable[[int, int], None] = lambda done, total: None,
    patience: float = PATIENCE,
) -> tuple[Agreement, list[str]]:
    """Judge on hosts what is asked: the verdicts, and the names of the machines.

    The backends in `named` must be offered; others that are not count as missing.

    Raises:
        Required: A host runs other code, or what is needed is not offered.
    """
    offers = _await_offers(hosts, asked, named, patience)
    batches = list(split(asked, offers.values()))
    answers, machines = _collect_answers(hosts, batches, progress, patience)
    agreement = merged(asked, answers)
    agreement.missing |= lacking(asked, offers.values())
    return agreement, machines


def _offers(hosts: Cluster) -> Mapping[str, Offer]:
    """The offers of the hosts that are there, by name.

    Raises:
        Required: A host runs something else than what runs here, or than another.
    """
    offers, ours = hosts.offers(), identity()
    for host, offer in offers.items():
        if why := difference(ours, offer.identity):
            raise Required(f"host {host} is refused: {why}")
    if why := mixture(offers):
        raise Required(f"these hosts cannot judge together: {why}")
    return offers


def _await_offers(
    hosts: Cluster, asked: Asked, named: Collection[str], patience: float
) -> Mapping[str, Offer]:
    """Wait for all that must be there; the offers of the hosts, by name."""
    end = time.monotonic() + patience
    while True:
        offers = _offers(hosts)
        absent = lacking(asked, offers.values())
        needed = {name: why for name, why in absent.items() if name in named}
        if offers and not needed and len(absent) < len(asked.backends):
            return offers
        if time.monotonic() > end:
            raise _unoffered((needed or absent).values(), offers, patience)
        time.sleep(LOOK)


def _unoffered(
    reasons: Iterable[str], offers: Mapping[str, Offer], patience: float
) -> Required:
    said = "; ".join(sorted({*reasons})) or "no host offers anything"
    there = "; ".join(
        f"{host} offers {', '.join(sorted(names))} on {device}"
        for host, offer in sorted(offers.items())
        for device, names in offer.frameworks.items()
    )
    return Required(f"{said}, for {patience:g} s ({there or 'no host is there'})")


def _collect_answers(
    hosts: Cluster,
    batches: Sequence[Asked],
    progress: Callable[[int, int], None],
    patience: float,
) -> tuple[list[Agreement], list[str]]:
    """The answer to each batch, once, and the names of the machines.

    Raises:
        Required: What a batch needs has not been offered for `patience` seconds.
    """
    answers, machines, served = list[Agreement](), set[str](), time.monotonic()
    flying = dict[Future[bytes], tuple[Asked, set[str]]]()
    waiting = list(batches)
    try:
        while waiting or flying:
            offers = _offers(hosts)
            for future in [f for f, (_, on) in flying.items() if on.isdisjoint(offers)]:
                future.cancel()
                waiting.append(flying.pop(future)[0])
            for batch in [batch for batch in waiting if able(batch, offers)]:
                waiting.remove(batch)
                fitting = able(batch, offers)
                # Where all are alike, those that come later are, too.
                only = () if len(fitting) == len(offers) else fitting
                flying[hosts.submit(packed(batch), only)] = batch, fitting
            if not waiting:
                served = time.monotonic()
            elif time.monotonic() - served > patience:
                reasons = [
                    r for b in waiting for r in lacking(b, offers.values()).values()
                ]
                raise _unoffered(reasons, offers, patience)
            if not flying:
                time.sleep(LOOK)
            for future in wait(flying, LOOK, FIRST_COMPLETED).done:
                machine, agreed = _answer(hosts, future, flying.pop(future)[0])
                machines.add(machine)
                answers.append(agreed)
                progress(len(answers), len(batches))
        _offers(hosts)  # one that came last is not refused any later
    finally:
        for future in flying:
            future.cancel()
    return answers, sorted(machines - {""})


def _answer(
    hosts: Cluster, future: Future[bytes], batch: Asked
) -> tuple[str, Agreement]:
    """The machine and its verdicts; a crash of the op if it took hosts with it.

    Raises:
        Required: The hosts are gone.
    """
    (op,) = batch.ops
    try:
        return msgspec.msgpack.decode(future.result(), type=tuple[str, Agreement])
    except hosts.fatal:
        why = f"several hosts were lost with {op}"
        return "", Agreement([unjudged(Failed(op, "", "crash", why))])
    except hosts.gone as error:
        raise Required(f"the hosts are gone: {error}") from None
