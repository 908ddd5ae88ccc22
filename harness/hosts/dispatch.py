"""Sends batches to hosts, and takes each answer once.

    with connected("dask://head:8786") as hosts:
        agreed, machines = agree_on_hosts(hosts, asked, named)

Dask does again elsewhere what a host was at when it was lost: an answer is all of a
batch or none of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.hosts.batches import (
    Answer,
    Batch,
    explained,
    lacking,
    merged,
    split,
    split_selftest,
)
from gradwatch.harness.hosts.identity import Offer, difference, identity, mixture
from gradwatch.harness.project.documents import packed
from gradwatch.harness.project.requested import Required
from gradwatch.harness.selftest.remote import Part
from gradwatch.harness.selftest.run import FULL, QUICK, chosen, planned, scored
from gradwatch.harness.selftest.scoring import Score

#: Seconds until it is said that no host offers what is asked: hosts of a cluster come
#: one after the other. Less than the minute that is promised.
PATIENCE = 45.0
LOOK = 1.0  # seconds between two looks at which hosts are there


class Hosts(Protocol):
    """Hosts that may come and go.

    gone: errors that say that none can be reached any longer. fatal: errors of a batch
    that took hosts with it.
    """

    gone: tuple[type[BaseException], ...]
    fatal: tuple[type[BaseException], ...]

    def offers(self) -> Mapping[str, Offer]:
        """The offer of each host that is there now, by its name."""

    def submit(self, content: bytes, able: Collection[str]) -> Future[bytes]:
        """Have one of these hosts run `host.run`; any host, if there are none."""


def connected(address: str) -> AbstractContextManager[Hosts]:
    """The hosts at an address.

    Raises:
        ValueError: It is none; the message says what one looks like.
        Required: Nobody answers there.
    """
    scheme, _, place = address.partition("://")
    if scheme == "dask" and place:
        from gradwatch.harness.hosts.dask import (
            Cluster,  # an extra: only who asks for it needs it
        )

        return Cluster(place)
    over_ssh = " (`dask ssh` starts a cluster over SSH)" if scheme == "ssh" else ""
    raise ValueError(f"{address!r} is not local or dask://HOST:PORT{over_ssh}")


def agree_on_hosts(
    hosts: Hosts,
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
    agreement = merged(asked, [a.agreed for a in answers if a.agreed])
    agreement.missing |= explained(lacking(asked, offers.values()), offers.values())
    return agreement, machines


def selftest_on_hosts(
    hosts: Hosts,
    part: Part,
    progress: Callable[[int, int], None] = lambda done, total: None,
    patience: float = PATIENCE,
) -> tuple[Score, list[str]]:
    """Try the judges on hosts: the score, and the names of the machines.

    Raises:
        Required: A host runs other code, or no framework is offered.
    """
    asked = Asked(ops=part.ops, backends=part.backends)
    offers = _await_offers(hosts, asked, (), patience)
    batches = list(split_selftest(part, offers.values()))
    answers, machines = _collect_answers(hosts, batches, progress, patience)
    tried = [answer.tried for answer in answers if answer.tried]
    replies = {name: reply for one in tried for name, reply in one.replies.items()}
    lost = {name: why for one in tried for name, why in one.lost.items()}
    missing = {name: why for one in tried for name, why in one.missing.items()}
    missing |= explained(lacking(asked, offers.values()), offers.values())
    extent = QUICK if part.quick else FULL
    leader = next(batch.part.leader for batch in batches if batch.part)
    trials = chosen(extent, part.ops, part.seed, part.orders)
    plan = planned(trials, extent, part.backends, leader)
    score = scored(plan, replies, lost)
    score.missing = dict(sorted((score.missing | missing).items()))
    return score, machines


def _offers(hosts: Hosts) -> Mapping[str, Offer]:
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
    hosts: Hosts, asked: Asked, named: Collection[str], patience: float
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
            raise Required(
                _unoffered(set((needed or absent).values()), offers, patience)
            )
        time.sleep(LOOK)


def _unoffered(
    reasons: Collection[str], offers: Mapping[str, Offer], patience: float
) -> str:
    said = "; ".join(sorted(reasons)) or "no host offers anything"
    there = "; ".join(
        f"{host} offers {', '.join(sorted(names))} on {device}"
        for host, offer in sorted(offers.items())
        for device, names in offer.frameworks.items()
    )
    return f"{said}, for {patience:g} s ({there or 'no host is there'})"


def _collect_answers(
    hosts: Hosts,
    batches: Sequence[Batch],
    progress: Callable[[int, int], None],
    patience: float,
) -> tuple[list[Answer], list[str]]:
    """The answer to each batch, once, and the names of the machines.

    Raises:
        Required: What a batch needs has not been offered for `patience` seconds.
    """
    answers, served = list[Answer](), time.monotonic()
    flying = dict[Future[bytes], tuple[Batch, set[str]]]()
    waiting = list(batches)
    try:
        while waiting or flying:
            offers = _offers(hosts)
            lost = [f for f, (_, able) in flying.items() if able.isdisjoint(offers)]
            for future in lost:
                future.cancel()
                waiting.append(flying.pop(future)[0])
            for batch in [batch for batch in waiting if batch.hosts(offers)]:
                waiting.remove(batch)
                able = batch.hosts(offers)
                alike = len(able) == len(offers)  # then those that come later are, too
                future = hosts.submit(packed(batch), () if alike else able)
                flying[future] = batch, able
            absent = {
                f"no host offers {' and '.join(sorted(batch.frameworks))}"
                f" on {batch.device}"
                for batch in waiting
            }
            if not absent:
                served = time.monotonic()
            elif time.monotonic() - served > patience:
                raise Required(_unoffered(absent, offers, patience))
            if not flying:
                time.sleep(LOOK)
            for future in wait(flying, LOOK, FIRST_COMPLETED).done:
                answers.append(_answer(hosts, future, flying.pop(future)[0]))
                progress(len(answers), len(batches))
        _offers(hosts)  # one that came last is not refused any later
    finally:
        for future in flying:
            future.cancel()
    return answers, sorted({answer.machine for answer in answers} - {""})


def _answer(hosts: Hosts, future: Future[bytes], batch: Batch) -> Answer:
    """The answer to a batch; a crash of its op if it took hosts with it.

    Raises:
        Required: The hosts are gone.
    """
    try:
        return msgspec.msgpack.decode(future.result(), type=Answer)
    except hosts.fatal:
        return batch.lost(f"several hosts were lost with {batch.name}")
    except hosts.gone as error:
        raise Required(f"the hosts are gone: {error}") from None
