"""Collects the results of one machine: the newest verdict and time of everything.

A run may have covered one op only, so each op and backend is taken from the newest
document that has it. Documents of other machines are never mixed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from gradwatch.harness.dashboard.sources import Finding, Results, Source
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.project.records import (
    AgreeRecord,
    CompareRecord,
    TimeRecord,
)
from gradwatch.impls.catalogue import backend_names, op_names

Place = tuple[str, str]  # op, runner
FIRST_ORDER = "vjp"  # of a record that names no order


def runner_of(backend: str, device: str) -> str:
    """The name of a backend on a device; the CPU is not named."""
    return backend if device == "cpu" else f"{backend} on {device}"


@dataclass
class MachineResults:
    """One machine's results; `origin[kind][place]` is the document they came from."""

    machine: str
    sources: list[Source]
    findings: list[Finding]
    judged: dict[Place, list[AgreeRecord]] = field(default_factory=dict)
    timed: dict[Place, list[TimeRecord]] = field(default_factory=dict)
    compared: list[CompareRecord] = field(default_factory=list)
    origin: dict[str, dict[Place, Source]] = field(default_factory=dict)

    def newest(self, kind: str) -> Source | None:
        """The newest document of a kind."""
        return next((s for s in self.sources if s.kind == kind), None)

    @property
    def ops(self) -> tuple[str, ...]:
        """Ops of the catalogue, and ops that only appear in results."""
        seen = {op for op, _ in (*self.judged, *self.timed)}
        return tuple(sorted({*op_names(), *seen}))

    @property
    def runners(self) -> tuple[str, ...]:
        """Backends of the catalogue on the CPU, and all others that have results.

        Where all results are of a GPU, those on the CPU would only be empty.
        """
        seen = {runner for _, runner in (*self.judged, *self.timed)}
        elsewhere = seen and all(" on " in runner for runner in seen)
        return tuple(sorted(seen if elsewhere else {*backend_names(), *seen}))

    @property
    def ran(self) -> tuple[str, ...]:
        """Backends that have results, and not only dialects that the pages lack."""
        ran = {runner for _, runner in self.timed}
        for (_, runner), records in self.judged.items():
            if any(record.verdict != "unsupported" for record in records):
                ran.add(runner)
        return tuple(sorted(ran))

    @property
    def absent(self) -> dict[str, str]:
        """Backends that have none here, and why."""
        asked = {runner for _, runner in self.judged}
        return {
            name: "no page has its dialect"
            if name in asked
            else self.missing.get(name, "not asked for")
            for name in self.runners
            if name not in self.ran
        }

    @property
    def regimes(self) -> tuple[str, ...]:
        """Regimes of the project, and regimes that only appear in results."""
        seen = {r.regime for records in self.judged.values() for r in records}
        return (*REGIMES, *sorted(seen - set(REGIMES)))

    @property
    def missing(self) -> dict[str, str]:
        """Backends that the newest run of the suite could not run, and why."""
        source = self.newest("agree")
        return source.summary.missing if source else {}

    def pairs(self, op: str) -> dict[str, dict[str, float | None]]:
        """The newest matrix of pairs of an op; None means an infinite ratio."""
        judged = (s.summary.pairs for s in self.sources if s.kind == "agree")
        return next((pairs[op] for pairs in judged if pairs.get(op)), {})

    def records(self, op: str = "") -> list[AgreeRecord]:
        """The verdicts on an op, or on all ops, in every order of differentiation."""
        wanted = (rs for place, rs in self.judged.items() if op in ("", place[0]))
        return list(chain.from_iterable(wanted))

    def untimed(self, op: str) -> dict[str, str]:
        """What the newest timing run left out of this op, and why."""
        source = self.newest("time")
        untimed = source.summary.untimed.items() if source else ()
        named = ((*what.partition(" ")[::2], why) for what, why in untimed)
        return {rest: why for name, rest, why in named if name == op}


def machine_results(results: Results, machine: str) -> MachineResults:
    """The results of all documents of one machine; newer ones take precedence."""
    own = [s for s in results.sources if s.machine == machine]
    own.sort(key=lambda s: s.environment.date, reverse=True)
    here = MachineResults(machine, own, results.findings)
    by_kind: dict[str, dict[Place, list[Any]]]
    by_kind = {"agree": here.judged, "time": here.timed}
    for kind, places in by_kind.items():
        origin = here.origin[kind] = {}
        for source in own:
            for record in source.records if source.kind == kind else ():
                place = (record.op, runner_of(record.backend, record.device))
                if origin.setdefault(place, source) is source:
                    places.setdefault(place, []).append(record)
    here.compared = [r for s in own if s.kind == "compare" for r in s.records]
    return here
