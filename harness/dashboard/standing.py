"""What is known of one machine: the newest verdict and time of everything.

A run may have been of one op alone, so each op and backend is taken from the newest
document that has it. Documents of other machines never enter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.dashboard.sources import Finding, Record, Results, Source
from harness.judging.cases import REGIMES
from impls.catalogue import backend_names, op_names

Place = tuple[str, str]  # op, runner


def runner_of(record: Mapping[str, Any]) -> str:
    """A backend on a device; the CPU goes without saying."""
    device = record["device"]
    name: str = record["backend"]
    return name if device == "cpu" else f"{name} on {device}"


@dataclass
class Standing:
    """One machine's results. `origin[kind][place]` is the document that was taken."""

    machine: str
    sources: list[Source]
    findings: list[Finding]
    judged: dict[Place, list[Record]] = field(default_factory=dict)
    timed: dict[Place, list[Record]] = field(default_factory=dict)
    compared: list[Record] = field(default_factory=list)
    origin: dict[str, dict[Place, Source]] = field(default_factory=dict)

    def newest(self, kind: str) -> Source | None:
        """The newest document of a kind."""
        return next((s for s in self.sources if s.kind == kind), None)

    @property
    def ops(self) -> tuple[str, ...]:
        """Ops of the catalogue, and those that only results know."""
        seen = {op for op, _ in (*self.judged, *self.timed)}
        return tuple(sorted({*op_names(), *seen}))

    @property
    def runners(self) -> tuple[str, ...]:
        """Backends of the catalogue on the CPU, and whatever else has results."""
        seen = {runner for _, runner in (*self.judged, *self.timed)}
        return tuple(sorted({*backend_names(), *seen}))

    @property
    def regimes(self) -> tuple[str, ...]:
        """Regimes of the project, and those that only results know."""
        seen = {r["regime"] for records in self.judged.values() for r in records}
        return (*REGIMES, *sorted(seen - set(REGIMES)))

    @property
    def missing(self) -> dict[str, str]:
        """Backends that the newest run of the suite could not ask, and why."""
        source = self.newest("agree")
        told = source.summary.get("missing") if source else {}
        return (
            {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}
        )

    def pairs(self, op: str) -> dict[str, dict[str, float | None]]:
        """The newest matrix of pairs of an op; None is an infinite ratio."""
        for source in self.sources:
            pairs = source.summary.get("pairs")
            if source.kind == "agree" and isinstance(pairs, dict) and pairs.get(op):
                matrix = pairs[op]
                sound = isinstance(matrix, dict) and all(
                    isinstance(row, dict) for row in matrix.values()
                )
                return matrix if sound else {}
        return {}

    def untimed(self, op: str) -> dict[str, str]:
        """What of an op the newest timed run left out, and why."""
        source = self.newest("time")
        told = source.summary.get("untimed") if source else {}
        told = told if isinstance(told, dict) else {}
        return {
            str(what).partition(" ")[2]: str(why)
            for what, why in told.items()
            if str(what).partition(" ")[0] == op
        }

    def bandwidth(self) -> float | None:
        """Bytes a second that a copy moves here, where a timed run has measured it."""
        for source in self.sources:
            for place in (source.summary, source.environment):
                value = place.get("copy_bandwidth")
                if isinstance(value, (int, float)) and value > 0:
                    return float(value)
        return None


def standing(results: Results, machine: str) -> Standing:
    """What all documents of one machine say together."""
    own = [s for s in results.sources if s.machine == machine]
    return gathered(machine, own, results.findings)


def gathered(
    machine: str, sources: Iterable[Source], findings: list[Finding]
) -> Standing:
    """What some documents of one machine say together; the newest has the word."""
    own = sorted(sources, key=lambda s: s.date, reverse=True)
    found = Standing(machine, own, findings)
    for kind, places in (("agree", found.judged), ("time", found.timed)):
        origin = found.origin.setdefault(kind, {})
        for source in own:
            if source.kind == kind:
                _take(source, places, origin)
    found.compared = [r for s in own if s.kind == "compare" for r in s.records]
    return found


def _take(
    source: Source, places: dict[Place, list[Record]], origin: dict[Place, Source]
) -> None:
    """Take from a document the ops and backends that no newer one has."""
    fresh = _grouped(source.records)
    for place, records in fresh.items():
        if place not in places:
            places[place], origin[place] = records, source


def _grouped(records: Iterable[Record]) -> dict[Place, list[Record]]:
    groups: dict[Place, list[Record]] = {}
    for record in records:
        groups.setdefault((record["op"], runner_of(record)), []).append(record)
    return groups
