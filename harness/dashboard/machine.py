"""Reads the results folder, and collects the results of one machine.

The content of a file never raises: a file that is damaged, has a newer schema or is not
ours becomes a trouble, which the site shows. A run may have covered one op only, so
each op and backend is taken from the newest document that has it. Documents of other
machines are never mixed in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.records import (
    FUZZ,
    KINDS,
    AgreeRecord,
    CompareRecord,
    Environment,
    FindingRecord,
    TimeRecord,
)
from gradwatch.impls.catalogue import backend_names, op_names

Place = tuple[str, str]  # op, runner
FIRST_ORDER = "vjp"  # of a record that names no order


@dataclass(frozen=True)
class Source:
    """One document: its file below the results folder, its kind, and its contents."""

    file: str
    kind: str
    environment: Environment
    summary: Any
    records: tuple[Any, ...]

    @property
    def machine(self) -> str:
        """The name of the machine on which the document was made."""
        return self.environment.machine or "unnamed"


#: A failure that the fuzzer found and shrank, and the script that shows it.
Finding = tuple[FindingRecord, str]


@dataclass
class Results:
    """The contents of a results folder, the newest first, and the unreadable files."""

    sources: list[Source] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    troubles: list[Unreadable] = field(default_factory=list)


def read_results(folder: Path) -> Results:
    """Read results/latest, results/recorded/<machine> and results/findings."""
    results, troubles = Results(), list[Unreadable]()
    for file in sorted([*folder.glob("latest/*"), *folder.glob("recorded/*/*")]):
        name = file.relative_to(folder).as_posix()
        if not name.endswith((".json", ".json.gz")):
            continue
        try:
            _not_elsewhere(file, folder)
            begins = re.split("[-.]", file.name)[0]
            kind = next((kind for kind in KINDS if kind.name == begins), None)
            if kind is None:
                named = ", ".join(k.name for k in KINDS)
                why = f"its name begins with no kind of document: {named}"
                raise Unreadable(why, file)
            found = documents.read(file, kind)
        except Unreadable as error:
            troubles.append(error)
            continue
        of_it = (found.environment, found.summary, tuple(found.records))
        results.sources.append(Source(name, kind.name, *of_it))
    records, damaged = documents.kept(folder / "findings" / "index.json", FUZZ)
    for about in {record.script: record for record in records}.values():
        script, text = folder / "findings" / Path(about.script).name, ""
        if about.script and script.exists():
            try:
                _not_elsewhere(script, script.parent)
                text = documents.bytes_of(script).decode("utf-8", "replace")
            except Unreadable as error:
                troubles.append(error)
        results.findings.append((about, text))
    troubles += damaged
    results.sources.sort(key=lambda s: s.environment.date, reverse=True)
    results.troubles = [one.below(folder) for one in troubles]
    return results


def _not_elsewhere(file: Path, folder: Path) -> None:
    """Refuse a link that leads out of a folder: its contents would be published."""
    if not file.resolve().is_relative_to(folder.resolve()):
        raise Unreadable("a link that leads out of the results", file)


# One machine -----------------------------------------------------------------------


def runner_of(backend: str, device: str) -> str:
    """The name of a backend on a device; the CPU is not named."""
    return backend if device == "cpu" else f"{backend} on {device}"


@dataclass
class MachineResults:
    """One machine's results; each record has its own date and commit."""

    machine: str
    sources: list[Source]
    findings: list[Finding]
    judged: dict[Place, list[AgreeRecord]] = field(default_factory=dict)
    timed: dict[Place, list[TimeRecord]] = field(default_factory=dict)
    compared: list[CompareRecord] = field(default_factory=list)

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

        If all results are of a GPU, backends on the CPU, which have none, are left out.
        """
        seen = {runner for _, runner in (*self.judged, *self.timed)}
        elsewhere = seen and all(" on " in runner for runner in seen)
        return tuple(sorted(seen if elsewhere else {*backend_names(), *seen}))

    @property
    def ran(self) -> tuple[str, ...]:
        """Backends with a result other than `unsupported`."""
        judged = {
            runner
            for (_, runner), records in self.judged.items()
            if any(record.verdict != "unsupported" for record in records)
        }
        return tuple(sorted(judged | {runner for _, runner in self.timed}))

    @property
    def absent(self) -> dict[str, str]:
        """Backends without such a result here, each with the reason."""
        asked, ran = {runner for _, runner in self.judged}, self.ran
        return {
            name: "no page has its dialect"
            if name in asked
            else self.missing.get(name, "not asked for")
            for name in self.runners
            if name not in ran
        }

    @property
    def missing(self) -> dict[str, str]:
        """Backends that the newest run of the suite could not run, with the reason."""
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
        """The cases of this op without a time in the newest run, with the reason."""
        source = self.newest("time")
        untimed = source.summary.untimed.items() if source else ()
        named = ((*what.partition(" ")[::2], why) for what, why in untimed)
        return {rest: why for name, rest, why in named if name == op}


def machine_results(results: Results, machine: str) -> MachineResults:
    """The results of all documents of one machine; newer ones take precedence."""
    own = [s for s in results.sources if s.machine == machine]
    here = MachineResults(machine, own, results.findings)
    here.compared = [r for s in own if s.kind == "compare" for r in s.records]
    kept: dict[str, dict[Place, list[Any]]]
    kept = {"agree": here.judged, "time": here.timed}
    for source in (one for one in own if one.kind in kept):
        places, about = kept[source.kind], source.environment
        newer = {*places}
        for record in source.records:
            place = (record.op, runner_of(record.backend, record.device))
            if place not in newer:
                record.date = record.date or about.date
                record.commit = record.commit or about.commit
                places.setdefault(place, []).append(record)
    return here
