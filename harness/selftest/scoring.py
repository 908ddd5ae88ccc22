"""Scores each judge: its share of caught errors, and its share of false alarms.

A planted error counts in a trial only if it is visible there: its effect, measured in
extended precision, exceeds the unit roundoff of the precision under test, in a tensor
that is not vacuous. All others are `same` or `silent`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from scipy import special

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.project.paths import toml
from gradwatch.harness.project.records import (
    CaughtMistakes,
    Detection,
    FalseAlarms,
    PlantedRecord,
    Requirement,
)
from gradwatch.harness.selftest.examine import (
    COMPARISONS,
    GRADCHECKS,
    JUDGE,
    Alarm,
    Run,
)

JUDGES = (JUDGE, *COMPARISONS, *GRADCHECKS)
#: Lower bounds of the bands of effects; each band ends where the one before it begins.
BANDS = {
    "float64": (1e-3, 1e-6, 1e-9, 1e-12),
    "float32": (1e-3, 1e-6),
    "float16": (1e-1, 1e-2),
    "bfloat16": (1e-1, 1e-2),
}


@dataclass(frozen=True)
class Goal:
    """The share of planted errors in a band of effects that the judge must catch.

    The shares are goals of the project. They were fixed before the first measurement.
    """

    dtype: str
    above: float
    up_to: float
    share: float

    def speaks_of(self, run: Run) -> bool:
        """Whether the run's effect is in this band."""
        return run.kind == "number" and self.above < run.effect <= self.up_to

    def __str__(self) -> str:
        bounds = f"effect over {self.above:g}"
        if self.up_to < math.inf:
            bounds = f"effect {self.above:g} to {self.up_to:g}"
        return f"{self.dtype}, {bounds}: at least {self.share:.1%} caught"


GOALS = (
    Goal("float64", 1e-9, math.inf, 0.995),
    Goal("float32", 1e-3, math.inf, 0.995),
    Goal("float32", 1e-6, 1e-3, 0.85),
    Goal("float16", 0.1, math.inf, 0.99),
    Goal("bfloat16", 0.1, math.inf, 0.99),
    Goal("float16", 0.01, 0.1, 0.95),
    Goal("bfloat16", 0.01, 0.1, 0.95),
)
DOUBLE_BACKWARD = Goal("float64", 1e-6, math.inf, 0.99)


@dataclass
class Score:
    """All runs and alarms of a selftest, of every order."""

    runs: list[tuple[Trial, Run]] = field(default_factory=list)
    alarms: list[tuple[Trial, Alarm]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, trial: Trial, alarms: Iterable[Alarm], runs: Iterable[Run]) -> None:
        """Add a worker's reply."""
        self.alarms += ((trial, alarm) for alarm in alarms)
        self.runs += ((trial, run) for run in runs)

    def of(self, *orders: str) -> Score:
        """The score of some orders of differentiation."""
        runs = [(trial, run) for trial, run in self.runs if trial.order in orders]
        alarms = [(trial, a) for trial, a in self.alarms if trial.order in orders]
        return Score(runs, alarms)

    @property
    def counted(self) -> list[tuple[Trial, Run]]:
        """The runs in which the planted error can be seen."""
        return [(trial, run) for trial, run in self.runs if matters(trial, run)]

    @property
    def missed(self) -> list[tuple[Trial, Run]]:
        """Counted runs that the judge accepted."""
        return [(t, r) for t, r in self.counted if JUDGE not in r.accused_by]

    def false_alarms(self, entries: Sequence[known.Known]) -> list[tuple[Trial, Alarm]]:
        """Right tensors that the judge rejects, without known framework defects."""
        accused = [(t, a) for t, a in self.alarms if JUDGE in a.accused_by]
        return [(t, a) for t, a in accused if not listed(t, a, entries)]


def matters(trial: Trial, run: Run) -> bool:
    """Whether the planted error is large enough to be seen in this precision."""
    if run.kind == "number":
        return run.effect > PRECISIONS[trial.problem.dtype].roundoff
    return run.kind == "structure"


def listed(trial: Trial, alarm: Alarm, entries: Sequence[known.Known]) -> bool:
    """Whether a rejected tensor is a framework defect that an entry lists."""
    return any(
        alarm.verdict in entry.verdicts
        and entry.names(trial, alarm.backend, alarm.version, alarm.tensor)
        for entry in entries
    )


# Tables -----------------------------------------------------------------------------


def bands(dtype: str) -> list[str]:
    """The rows of a precision's table, largest effects first."""
    edges = [f"{edge:g}" for edge in BANDS[dtype]]
    between = [f"{low} to {high}" for high, low in pairwise(edges)]
    return ["structure", f"over {edges[0]}", *between, f"up to {edges[-1]}"]


def detection(score: Score) -> list[Detection]:
    """The share of errors caught, by precision, effect and judge."""
    rows = defaultdict[tuple[str, int], list[Run]](list)
    for trial, run in score.counted:
        dtype = trial.problem.dtype
        band = 1 + sum(not run.effect > edge for edge in BANDS[dtype])
        rows[dtype, 0 if run.kind == "structure" else band].append(run)
    return [
        Detection(dtype=dtype, effect=effect, runs=len(row), caught=_shares(row))
        for dtype in BANDS
        for i, effect in enumerate(bands(dtype))
        if (row := rows[dtype, i])
    ]


def accusations(score: Score, entries: Sequence[known.Known]) -> list[FalseAlarms]:
    """The share of right tensors rejected, by precision and judge."""
    found = list[FalseAlarms]()
    for dtype in BANDS:
        of_it = [(t, alarm) for t, alarm in score.alarms if t.problem.dtype == dtype]
        row = [alarm for t, alarm in of_it if not listed(t, alarm, entries)]
        if tensors := sum(JUDGE in alarm.asked for alarm in row):
            shares = _shares(row)
            found.append(FalseAlarms(dtype=dtype, tensors=tensors, accused=shares))
    return found


def by_mistake(score: Score) -> list[CaughtMistakes]:
    """The required and the caught runs of each mistake in double backwards."""
    speaking = (r for _, r in score.counted if DOUBLE_BACKWARD.speaks_of(r))
    pairs = ((run.mistake, JUDGE in run.accused_by) for run in speaking)
    return sorted(_caught(pairs), key=lambda one: one.mistake)


def by_label(score: Score) -> list[CaughtMistakes]:
    """The diagnosed and the rightly named runs of each kind of mistakes."""
    said = (run for _, run in score.runs if run.said)
    return _caught((kind_of(r.mistake), named(r.mistake, r.said)) for r in said)


def _caught(pairs: Iterable[tuple[str, bool]]) -> list[CaughtMistakes]:
    """The number of runs of each mistake, the most first, and of those caught."""
    caught, asked = Counter[str](), Counter[str]()
    for mistake, found in pairs:
        asked[mistake] += 1
        caught[mistake] += found
    return [
        CaughtMistakes(mistake=mistake, runs=count, caught=caught[mistake])
        for mistake, count in asked.most_common()
    ]


def _shares(row: Sequence[Run | Alarm]) -> dict[str, float]:
    """The share that each judge rejected of those that it was asked about."""
    asked = Counter(judge for one in row for judge in one.asked)
    caught = Counter(judge for one in row for judge in one.accused_by)
    return {judge: caught[judge] / asked[judge] for judge in JUDGES if asked[judge]}


# Requirements -----------------------------------------------------------------------


def requirements(
    score: Score, entries: Sequence[known.Known], *, tensors: int, some: bool = False
) -> Iterator[Requirement]:
    """Each requirement, the measured figure, and whether it is met.

    `tensors` is the least number of right gradients in float64 and in float32. With
    `some` ops only, a band may have no errors, or so few that chance misses more.
    """
    structure = [r for _, r in score.counted if r.kind == "structure"]
    yield _met(structure, "None, shape, dtype, not finite: all caught", 1.0, some)
    for wanted in GOALS:
        runs = [
            run
            for trial, run in score.counted
            if trial.problem.dtype == wanted.dtype and wanted.speaks_of(run)
        ]
        if runs or not (some and structure):
            yield _met(runs, str(wanted), wanted.share, some)
    yield _right(score, entries, "no false alarm")
    asked = [trial.problem.dtype for trial, a in score.alarms if JUDGE in a.asked]
    for dtype in ("float64", "float32"):
        yield _enough(asked.count(dtype), tensors, f"right {dtype} tensors")


def second_requirements(
    score: Score, entries: Sequence[known.Known], *, tensors: int, planted: bool = True
) -> Iterator[Requirement]:
    """The requirements of second order; `tensors` is the least number of right tensors.

    `planted` says whether mistakes were planted: in double backwards alone.
    """
    if planted:
        goal = DOUBLE_BACKWARD
        runs = [run for _, run in score.counted if goal.speaks_of(run)]
        yield _met(runs, f"double backward, {goal}", goal.share, False)
    yield _right(score, entries, "second order, no false alarm")
    yield _enough(len(score.alarms), tensors, "right tensors of second order")


def _right(score: Score, entries: Sequence[known.Known], line: str) -> Requirement:
    false = score.false_alarms(entries)
    return Requirement(line, f"{len(false)} of {len(score.alarms)}", not false)


def _enough(seen: int, least: int, what: str) -> Requirement:
    return Requirement(f"{least} {what} or more", f"{seen}", seen >= least)


def _met(runs: Sequence[Run], line: str, share: float, some: bool) -> Requirement:
    caught = sum(JUDGE in run.accused_by for run in runs)
    per_cent = f", {caught / len(runs):.2%}" if runs else ""
    # Of a few runs chance alone may miss more; a chance below 1 in 100 is a failure.
    luck = some and special.bdtr(caught, len(runs), share) > 0.01
    met = bool(runs) and bool(luck or caught >= share * len(runs))
    return Requirement(line, f"{caught} of {len(runs)}{per_cent}", met)


# Records and names ------------------------------------------------------------------


def records(score: Score) -> list[PlantedRecord]:
    """A record for each planted error and precision."""
    found: dict[tuple[str, str, str], PlantedRecord] = {}
    for trial, run in score.runs:
        op, mistake, dtype = trial.problem.op.name, run.mistake, trial.problem.dtype
        fresh = PlantedRecord(op=op, mistake=mistake, dtype=dtype)
        one = found.setdefault((op, mistake, dtype), fresh)
        one.runs += 1
        one.silent += run.kind == "silent"
        one.diagnosed += bool(run.said)
        one.named += bool(run.said) and named(mistake, run.said)
        if matters(trial, run):
            one.counted += 1
            one.asked = dict(Counter(one.asked) + Counter(run.asked))
            one.caught = dict(Counter(one.caught) + Counter(run.accused_by))
    return [found[key] for key in sorted(found)]


#: By kind, patterns of the mistakes, and of the sentences that name one.
LABELS: Mapping[str, Sequence[str]] = toml(Path(__file__).with_name("labels.toml"))


def kind_of(mistake: str) -> str:
    """The kind of a planted mistake."""
    kinds = (k for k, (of_it, _) in LABELS.items() if re.search(of_it, mistake))
    return next(kinds, "other")


def named(mistake: str, sentences: Iterable[str]) -> bool:
    """Whether each of the sentences names a mistake; never for kinds without label."""
    _, words = LABELS.get(kind_of(mistake), ("", "$^"))
    return all(re.search(words, sentence) for sentence in sentences)
