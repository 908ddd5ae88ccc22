"""Sends batches to hosts, and takes each answer once.

    with connected("dask://head:8786") as hosts:
        agreed, machines = agreed_on(hosts, asked, named)

What a host was at when it was lost is done again elsewhere: an answer is all of a batch
or none of it. Whatever the hosts are, they are an executor of `concurrent.futures`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gradwatch.harness.agreement.remote import Asked
from gradwatch.harness.agreement.suite import Agreement, Required
from gradwatch.harness.hosts.batches import (
    Answer,
    Batch,
    Planting,
    explained,
    lacking,
    merged,
    plantings,
    split,
)
from gradwatch.harness.hosts.gateways import Machines
from gradwatch.harness.hosts.identity import Offer, difference, identity, mixture
from gradwatch.harness.project.documents import packed
from gradwatch.harness.selftest.remote import Part
from gradwatch.harness.selftest.run import FULL, QUICK, chosen, planned, scored
from gradwatch.harness.selftest.scoring import Score

#: Seconds until it is said that no host offers what is asked: hosts of a cluster come
#: one after the other. Less than the minute that is promised.
PATIENCE = 45.0
LOOK = 1.0  # seconds between two looks at which hosts are there
#: Hosts that a batch may be lost with. Dask's own limit is three, too
#: (distributed.scheduler.allowed-failures).
LOSSES = 3


class Hosts(Protocol):
    """Hosts that may come and go.

    lost: errors of a host that has gone. fatal: of a batch that took hosts with it.
    """

    lost: tuple[type[BaseException], ...]
    fatal: tuple[type[BaseException], ...]

    def offers(self) -> Mapping[str, Offer]:
        """What each host offers that is there now, by its name."""

    def submit(
        self, content: bytes, device: str, frameworks: set[str]
    ) -> Future[bytes]:
        """Have a host that offers these run `gradwatch.harness.hosts.host.run`."""


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
    if scheme == "ssh" and place and all(names := place.split(",")):
        return Machines(list(dict.fromkeys(names)))
    raise ValueError(f"{address!r} is not local, dask://HOST:PORT or ssh://HOST,...")


def agreed_on(
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
    offers = _awaited(hosts, asked, named, patience)
    batches = list(split(asked, offers.values(), identity().digest))
    answers, machines = _answered(hosts, batches, progress, patience)
    agreement = merged(asked, [a.settled for a in answers if a.settled])
    agreement.missing |= explained(lacking(asked, offers.values()), offers.values())
    return agreement, machines


def tried_on(
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
    offers = _awaited(hosts, asked, (), patience)
    batches = list(plantings(part, offers.values(), identity().digest))
    answers, machines = _answered(hosts, batches, progress, patience)
    tried = [answer.tried for answer in answers if answer.tried]
    replies = {name: reply for one in tried for name, reply in one.replies.items()}
    lost = {name: why for one in tried for name, why in one.lost.items()}
    missing = {name: why for one in tried for name, why in one.missing.items()}
    missing |= explained(lacking(asked, offers.values()), offers.values())
    extent = QUICK if part.quick else FULL
    trials = chosen(extent, part.ops, part.seed, part.orders)
    plan = planned(trials, extent, part.backends, batches[0].part.leader)
    score = scored(plan, replies, lost)
    score.missing = dict(sorted((score.missing | missing).items()))
    return score, machines


def _answered(
    hosts: Hosts,
    batches: Sequence[Batch | Planting],
    progress: Callable[[int, int], None],
    patience: float,
) -> tuple[list[Answer], list[str]]:
    """The answer to each batch, and the names of the machines."""
    answers, machines = list[Answer](), set[str]()
    for answer in _Dispatch(hosts, batches, patience).answers():
        answers.append(answer)
        machines |= {answer.machine} - {""}
        progress(len(answers), len(batches))
    return answers, sorted(machines)


def _awaited(
    hosts: Hosts, asked: Asked, named: Collection[str], patience: float
) -> Mapping[str, Offer]:
    """What hosts offer, as soon as that is all that must be there."""
    end = time.monotonic() + patience
    while True:
        offers = hosts.offers()
        _refuse_others(offers)
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


def _refuse_others(offers: Mapping[str, Offer]) -> None:
    """Refuse hosts that run something else than what runs here, or than each other."""
    ours = identity()
    for host, offer in offers.items():
        if why := difference(ours, offer.identity):
            raise Required(f"host {host} is refused: {why}")
    if why := mixture(offers):
        raise Required(f"these hosts cannot judge together: {why}")


@dataclass
class _Flight:
    """A batch under way, and the hosts that offered what it needs when it left."""

    batch: Batch | Planting
    hosts: set[str]


class _Dispatch:
    """The batches of a run: those that wait, and those that are under way."""

    def __init__(
        self, hosts: Hosts, batches: Sequence[Batch | Planting], patience: float
    ) -> None:
        self._hosts, self._patience = hosts, patience
        self._waiting = list(batches)
        self._flying: dict[Future[bytes], _Flight] = {}
        self._losses = Counter[str]()
        self._served = time.monotonic()

    def answers(self) -> Iterator[Answer]:
        """The answer to each batch, once, in the order in which they come."""
        try:
            while self._waiting or self._flying:
                offers = self._hosts.offers()
                self._forget(offers)
                self._send(offers)
                self._check_offered(offers)
                ended, _ = wait(self._flying, LOOK, FIRST_COMPLETED)
                if not self._flying:
                    time.sleep(LOOK)
                for future in ended:
                    yield from self._ended(future)
        finally:
            for future in self._flying:
                future.cancel()

    def _send(self, offers: Mapping[str, Offer]) -> None:
        """One batch for each host: what has two in hand, another could take."""
        busy = Counter(_needs(flight.batch) for flight in self._flying.values())
        left = []
        for batch in self._waiting:
            able = _able(batch, offers)
            if busy[_needs(batch)] >= len(able):
                left.append(batch)
                continue
            busy[_needs(batch)] += 1
            future = self._hosts.submit(packed(batch), batch.device, batch.frameworks)
            self._flying[future] = _Flight(batch, able)
        self._waiting = left

    def _forget(self, offers: Mapping[str, Offer]) -> None:
        """Take back what no host has any longer that had it when it left."""
        for future, flight in list(self._flying.items()):
            if not future.done() and not flight.hosts & {*offers}:
                future.cancel()
                del self._flying[future]
                self._again(flight.batch)

    def _ended(self, future: Future[bytes]) -> Iterator[Answer]:
        batch = self._flying.pop(future).batch
        try:
            answer = msgspec.msgpack.decode(future.result(), type=Answer)
        except self._hosts.fatal:
            yield _lost(batch)
        except self._hosts.lost:
            self._again(batch)
        else:
            _accept(answer)
            yield answer
        if self._losses[batch.name] >= LOSSES:
            self._waiting.remove(batch)
            yield _lost(batch)

    def _again(self, batch: Batch | Planting) -> None:
        self._losses[batch.name] += 1
        self._waiting.insert(0, batch)

    def _check_offered(self, offers: Mapping[str, Offer]) -> None:
        """Wait for a host that offers what is left, but not for ever.

        Raises:
            Required: None has come.
        """
        absent = {
            f"no host offers {' and '.join(sorted(batch.frameworks))} on {batch.device}"
            for batch in self._waiting
            if not _able(batch, offers)
        }
        if not absent:
            self._served = time.monotonic()
        elif time.monotonic() - self._served > self._patience:
            raise Required(_unoffered(absent, offers, self._patience))


def _needs(batch: Batch | Planting) -> tuple[str, frozenset[str]]:
    return batch.device, frozenset(batch.frameworks)


def _able(batch: Batch | Planting, offers: Mapping[str, Offer]) -> set[str]:
    """The hosts that can judge a batch."""
    return {h for h, o in offers.items() if o.has(batch.device, batch.frameworks)}


def _accept(answer: Answer) -> None:
    """Refuse a host that came later, with other code."""
    if answer.refusal is not None:
        why = difference(identity(), answer.refusal)
        raise Required(f"a host ({answer.machine}) is refused: {why}")


def _lost(batch: Batch | Planting) -> Answer:
    return batch.lost(f"{LOSSES} hosts were lost with {batch.name}")
