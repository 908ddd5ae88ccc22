"""Batches: a run is split into parts that are names only, and put together again.

A batch of `agree` is one op on one device, in one precision and order, on all backends:
these are compared in pairs, and the reference is the dearest part of a judgement. One
of `selftest` is one op. Only where no host has all the frameworks are backends divided
among several batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from msgspec import Struct, structs

from gradwatch.harness.agreement.remote import unjudged, vanished
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.console.options import runs_on
from gradwatch.harness.hosts.identity import Offer
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.selftest.remote import Part, Tried
from gradwatch.harness.selftest.run import leader_of
from gradwatch.harness.workers.child import Failed
from gradwatch.impls.catalogue import framework_of


class Batch(Struct):
    """Work for one host at a time: of `agree`, or else of `selftest`."""

    asked: Asked | None = None
    part: Part | None = None

    @property
    def work(self) -> Asked | Part:
        """What is asked for, whichever it is."""
        work = self.asked or self.part
        assert work is not None
        return work

    @property
    def device(self) -> str:
        """The one device."""
        return self.asked.devices[0] if self.asked else "cpu"

    @property
    def frameworks(self) -> set[str]:
        """The frameworks that a host must have."""
        return {framework_of(backend) for backend in self.work.backends}

    def hosts(self, offers: Mapping[str, Offer]) -> set[str]:
        """The hosts that can judge it, by their offers."""
        return {h for h, o in offers.items() if o.has(self.device, self.frameworks)}

    @property
    def name(self) -> str:
        """For people: "softmax cpu float32 vjp torch", "selftest softmax torch"."""
        ops, a = self.work.ops, self.asked
        parts = (*ops, *a.devices, *a.dtypes, *a.orders) if a else ("selftest", *ops)
        return " ".join((*parts, *sorted(self.frameworks)))

    def lost(self, why: str) -> Answer:
        """The answer if it takes each host with it: a crash of its op."""
        (op,) = self.work.ops
        if self.asked:
            return Answer("", Agreement([unjudged(Failed(op, "", "crash", why))]))
        missing = dict.fromkeys(self.work.backends, f"crash: {why}")
        return Answer("", tried=Tried(missing=missing))


class Answer(Struct):
    """The result of a whole batch, and the name of the machine."""

    machine: str
    agreed: Agreement | None = None
    tried: Tried | None = None


def split(asked: Asked, offers: Iterable[Offer]) -> Iterator[Batch]:
    """The batches of a run; backends that no host has are in none of them."""
    offered = list(offers)
    groups = {
        device: _groups(asked.backends, device, offered) for device in asked.devices
    }
    for op, device in product(asked.ops, asked.devices):
        parts = product(groups[device], asked.dtypes, asked.orders)
        for backends, dtype, order in parts:
            names: dict[str, Any] = {"ops": [op], "devices": [device]}
            names |= {"dtypes": [dtype], "orders": [order], "backends": backends}
            yield Batch(structs.replace(asked, **names))


def split_selftest(part: Part, offers: Iterable[Offer]) -> Iterator[Batch]:
    """Likewise of a self-test; NumPy's worker plants if PyTorch is on another host."""
    groups = _groups(part.backends, "cpu", list(offers))
    with_numpy = next((g for g in groups if "numpy" in map(framework_of, g)), [])
    leader = leader_of(with_numpy)
    for op, backends in product(part.ops, groups):
        one = structs.replace(part, ops=[op], backends=backends, leader=leader)
        yield Batch(part=one)


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


def lacking(asked: Asked, offers: Iterable[Offer]) -> dict[str, str]:
    """Why backends are not judged that no host has on any device that is asked for."""
    offered = list(offers)
    return {
        backend: f"no host offers {framework_of(backend)} on {device}"
        for device in asked.devices
        for backend in asked.backends
        if runs_on(backend, device)
        and not any(offer.has(device, {framework_of(backend)}) for offer in offered)
    }


def explained(missing: Mapping[str, str], offers: Iterable[Offer]) -> dict[str, str]:
    """The reasons for missing backends; the hosts' own where they all agree."""
    offered = list(offers)
    reasons = dict[str, str]()
    for backend, why in missing.items():
        said = {offer.absent.get(framework_of(backend), "") for offer in offered}
        reasons[backend] = (said.pop() or why) if len(said) == 1 else why
    return reasons


def merged(asked: Asked, answers: Iterable[Agreement]) -> Agreement:
    """All answers as one run, in an order that does not depend on who came first."""
    agreement, failed = Agreement(), dict[str, AgreeRecord]()
    for answer in answers:
        unjudged = [r for r in answer.records if r.backend == "reference"]
        for record in unjudged:  # the page fails in each of its batches: one verdict
            failed[record.op] = min(failed.get(record.op, record), record, key=_name)
        kept = [r for r in answer.records if r.backend != "reference"]
        agreement.add(structs.replace(answer, records=kept))
    agreement.records += failed.values()
    put_in_order(agreement, asked)
    agreement.gone = vanished(asked, agreement, known.load())
    return agreement


def _name(record: AgreeRecord) -> tuple[str, str]:
    return record.case, record.message


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
