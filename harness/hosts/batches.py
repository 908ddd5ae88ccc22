"""Batches: a run is split into parts that are names only, and put together again.

A batch is one op on one device, in one precision and order, on all backends: these are
compared in pairs, and the reference is the dearest part of a judgement. Only where no
host has all the frameworks are backends divided among several batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from msgspec import structs

from gradwatch.harness.agreement.remote import vanished
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.console.options import runs_on
from gradwatch.harness.hosts.identity import Offer
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import framework_of


def split(asked: Asked, offers: Iterable[Offer]) -> Iterator[Asked]:
    """The batches of a run; backends that no host has are in none of them."""
    offered = list(offers)
    groups = {
        device: _groups(asked.backends, device, offered) for device in asked.devices
    }
    for op, device in product(asked.ops, asked.devices):
        for backends, dtype, order in product(
            groups[device], asked.dtypes, asked.orders
        ):
            yield structs.replace(
                asked,
                ops=[op],
                devices=[device],
                backends=backends,
                dtypes=[dtype],
                orders=[order],
            )


def _groups(
    backends: Sequence[str], device: str, offers: Sequence[Offer]
) -> list[list[str]]:
    """The backends, in as few groups as a greedy choice gives, each for one host."""
    left = [name for name in backends if runs_on(name, device)]
    groups = []
    while left:
        shares = [
            [name for name in left if offer.has(device, {framework_of(name)})]
            for offer in offers
        ]
        most = max(shares, key=len, default=[])
        if not most:
            break
        groups.append(most)
        left = [name for name in left if name not in most]
    return groups


def able(batch: Asked, offers: Mapping[str, Offer]) -> set[str]:
    """The hosts that can judge a batch, by their offers."""
    needed = {*map(framework_of, batch.backends)}
    return {h for h, o in offers.items() if o.has(batch.devices[0], needed)}


def lacking(asked: Asked, offers: Iterable[Offer]) -> dict[str, str]:
    """Why backends are not judged that no host has on any device that is asked for.

    Where all hosts say the same of a framework, that is the reason.
    """
    offered, reasons = list(offers), dict[str, str]()
    for device, backend in product(asked.devices, asked.backends):
        framework = framework_of(backend)
        there = any(offer.has(device, {framework}) for offer in offered)
        if runs_on(backend, device) and not there:
            said = {offer.absent.get(framework, "") for offer in offered}
            alike = said.pop() if len(said) == 1 else ""
            reasons[backend] = alike or f"no host offers {framework} on {device}"
    return reasons


def merged(asked: Asked, answers: Iterable[Agreement]) -> Agreement:
    """All answers as one run, in an order that does not depend on who came first."""
    agreement, failed = Agreement(), dict[str, AgreeRecord]()
    for answer in answers:
        unjudged = [r for r in answer.records if r.backend == "reference"]
        for record in unjudged:  # the page fails in each of its batches: one verdict
            two = failed.get(record.op, record), record
            failed[record.op] = min(two, key=lambda one: (one.case, one.message))
        kept = [r for r in answer.records if r.backend != "reference"]
        agreement.add(structs.replace(answer, records=kept))
    agreement.records += failed.values()
    put_in_order(agreement, asked)
    agreement.gone = vanished(asked, agreement, known.load())
    return agreement


def put_in_order(agreement: Agreement, asked: Asked) -> None:
    """Sort records by op as asked, case, device and backend, and the rest by name.

    The tensors of a backend in a case keep their order, which is that of the judge.
    """
    place = {op: i for i, op in enumerate(asked.ops)}
    last = len(place)

    def key(record: AgreeRecord) -> tuple[int, str, str, str]:
        at = place.get(record.op, last)
        return at, record.case, record.device, record.backend

    agreement.records.sort(key=key)
    agreement.unrepeatable.sort()
    agreement.missing = dict(sorted(agreement.missing.items()))
    agreement.pairs = {
        op: {a: dict(sorted(row.items())) for a, row in sorted(matrix.items())}
        for op, matrix in sorted(agreement.pairs.items())
    }
