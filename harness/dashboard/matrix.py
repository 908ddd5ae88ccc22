"""One cell for each op and backend, and the groups and styles of backends.

The colour of a backend is its framework's, its shape is its dialect's. Each colour has
a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the light and with the dark
background, so both share it; neighbours are as different as they can be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gradwatch.harness.agreement.output import Overall, grouped, overall
from gradwatch.harness.judging.defects import known
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
from gradwatch.harness.project.verdicts import VERDICTS
from gradwatch.impls.catalogue import backend_names, framework_of, op_names
from gradwatch.impls.contract import DIALECTS

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


# The range of the bars, on a log scale: float64 results are rarely closer to the
# reference than a hundredth of a radius, and limits are about 17.
FAINTEST, STRONGEST = 1e-2, 1e3


@dataclass
class Cell:
    """The results of one op on one backend.

    `verdict` is one of the judge's, or "none": nothing was judged. `defect` is the
    reason of a known defect. `speed` is the time divided by that of the fastest backend
    that is right. `orders` are the verdicts on other orders of differentiation; all
    other fields are of the first one.
    """

    op: str
    runner: str
    verdict: str = "none"
    ratio: float | None = None
    limit: float | None = None
    tensors: int = 0
    unexpected: int = 0
    defect: str = ""
    message: str = ""
    older: str = ""
    speed: float | None = None
    orders: Mapping[str, Overall] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether some tensor is wrong and is not a known defect."""
        return self.unexpected > 0

    @property
    def astray(self) -> bool:
        """Whether a tensor of another order is wrong and is not a known defect."""
        return any(order.unexpected for order in self.orders.values())

    @property
    def rank(self) -> tuple[bool, bool, bool, int, float]:
        """A sort key, the worst cell last: wrong, a known defect, then by verdict."""
        severe = (*_CALM, *VERDICTS).index(self.verdict)
        return self.wrong, self.astray, bool(self.defect), severe, self.ratio or 0.0


# Verdicts of cells that have no error to show; the least severe comes first.
_CALM = ("none", "unsupported", "agree", "vacuous")

Cells = Mapping[str, Mapping[str, Cell]]  # by op, then by runner


def short(value: float | None) -> str:
    """A number with two digits: 1.6, 17, 5.4e8, ∞."""
    if value is None:
        return ""
    if math.isinf(value):
        return "∞"
    if 0.01 <= abs(value) < 100 or value == 0:
        return f"{value:.2g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{value:.0f}" if 100 <= value < 1e4 else f"{digits}e{int(exponent)}"


def bar_length(ratio: float | None) -> float:
    """The position of a ratio between FAINTEST and STRONGEST on a log scale, 0 to 1."""
    if not ratio or ratio <= FAINTEST:
        return 0.0
    return min(1.0, math.log(ratio / FAINTEST) / math.log(STRONGEST / FAINTEST))


def matrix(here: MachineResults) -> dict[str, dict[str, Cell]]:
    """All cells, by op and then by runner."""
    entries, head = known.load(), here.newest("agree")
    cells = {op: {name: Cell(op, name) for name in here.runners} for op in here.ops}
    for cell in (cell for row in cells.values() for cell in row.values()):
        cell.message = here.missing.get(cell.runner, "not judged")
        every = here.judged.get((cell.op, cell.runner), ())
        by_order = grouped(every, attrgetter("order"))
        records = by_order.pop(FIRST_ORDER, [])
        cell.orders = {name: overall(of_it) for name, of_it in by_order.items()}
        if not records:
            continue
        judged = overall(records)
        cell.verdict, cell.unexpected = judged.verdict, judged.unexpected
        worst, cell.tensors = judged.worst, len(records)
        cell.ratio, cell.limit = worst.distance, worst.limit
        cell.message = worst.message
        if judged.listed and not judged.unexpected:
            reasons = (e.reason for e in entries if e.is_expected_in(worst))
            cell.defect = next(reasons, "listed")
        _, commit = min((record.date, record.commit) for record in records)
        if head and commit != head.environment.commit:
            cell.older = f"from the older commit {commit[:8]}"
    for row in cells.values():
        _add_speed(row, here)
    return cells


def _add_speed(row: Mapping[str, Cell], here: MachineResults) -> None:
    """Give each right cell its time over that of the fastest backend that is right.

    For each size, precision and pass, the time is divided by the shortest time of a
    right backend on the same device; `speed` is the geometric mean of these ratios.
    """
    times = {
        runner: {
            (r.case, r.device, r.dtype, r.phase): r.seconds
            for r in here.timed.get((cell.op, runner), [])
        }
        for runner, cell in row.items()
        if not cell.wrong
    }
    best: dict[tuple[str, ...], float] = {}
    for runner, of_it in times.items():
        for key, seconds in of_it.items() if not row[runner].defect else ():
            best[key] = min(seconds, best.get(key, math.inf))
    for runner, of_it in times.items():
        if logs := [math.log(s / best[k]) for k, s in of_it.items() if k in best]:
            row[runner].speed = math.exp(fmean(logs))


# Families ---------------------------------------------------------------------------

#: Colours of frameworks: blue, orange, green, purple, teal, red, ochre, pink.
COLOURS = (
    *("#127ddf", "#d86512", "#0b851e", "#a125ed"),
    *("#0da1a1", "#e4121f", "#a88f0e", "#f044b5"),
)
BAD, GOOD = "#d4351c", "#2e8b57"

#: Names and signs of Bokeh's markers for dialects; their dashes and gaps in pixels.
MARKERS = {
    "circle": "●",
    "square": "■",
    "triangle": "▲",
    "diamond": "◆",
    "inverted_triangle": "▼",
    "hex": "⬢",
    "star": "★",
}
DASHES = ("solid", "6", "2 4", "10 3 2 3", "12 3", "6 4 2 4", "1 2")


class Family(NamedTuple):
    """The backends of one framework on one device, under the name of both."""

    name: str
    runners: tuple[str, ...]

    def worst(self, row: Mapping[str, Cell]) -> Cell:
        """The worst cell, which a folded column shows."""
        return max((row[runner] for runner in self.runners), key=lambda c: c.rank)


def families(runners: Iterable[str]) -> tuple[Family, ...]:
    """Backends grouped by framework and device, both in alphabetical order."""
    groups: dict[str, list[str]] = {}
    for runner in sorted(runners):
        groups.setdefault(family_of(runner), []).append(runner)
    return tuple(Family(name, tuple(groups[name])) for name in sorted(groups))


def family_of(runner: str) -> str:
    """A family's name: torch for torch_custom, "torch on cuda" for one on a GPU."""
    backend, on, device = runner.partition(" (")[0].partition(" on ")
    return framework_of(backend) + on + device


def flavour_of(runner: str) -> str:
    """The dialect: custom for torch_custom, "custom (old)" with versions."""
    runner, bracket, versions = runner.partition(" (")
    backend = runner.partition(" on ")[0]
    return (backend.partition("_")[2] or backend) + bracket + versions


class Style(NamedTuple):
    """Colour, marker and dash of one runner; the sign is the marker as a letter."""

    colour: str
    marker: str
    sign: str
    dash: str


def styles(runners: Sequence[str]) -> dict[str, Style]:
    """A style for each runner: its framework's colour, its dialect's shapes."""
    named = {flavour_of(runner) for runner in runners}
    names = sorted(named, key=lambda name: (name not in DIALECTS, name))
    shapes = [(*m, dash) for m, dash in zip(MARKERS.items(), DASHES, strict=True)]
    return {
        runner: Style(
            COLOURS[i % len(COLOURS)],
            *shapes[names.index(flavour_of(runner)) % len(shapes)],
        )
        for i, family in enumerate(families(runners))
        for runner in family.runners
    }
