"""Scores each judge: its share of caught errors, and its share of false alarms.

A planted error counts in a trial only if it can be seen there: its effect, measured in
extended precision, exceeds the unit roundoff of the precision under test, in a tensor
that is not vacuous. All others are `same` or `silent`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.orders import SECOND
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.project.records import (
    CaughtMistakes,
    Detection,
    FalseAlarms,
    PlantedRecord,
    Requirement,
)
from gradwatch.harness.selftest.examine import JUDGE, Alarm, Run
from gradwatch.harness.selftest.rivals import COMPARISONS, GRADCHECKS

Key = TypeVar("Key", bound=Hashable)
Judged = TypeVar("Judged", Run, Alarm)
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
    """All runs and alarms of a selftest; those of the second order by themselves."""

    runs: list[tuple[Trial, Run]] = field(default_factory=list)
    alarms: list[tuple[Trial, Alarm]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    second: Score | None = None

    def add(self, trial: Trial, alarms: Iterable[Alarm], runs: Iterable[Run]) -> None:
        """Add a worker's reply."""
        own = self
        if trial.order in SECOND:
            own = self.second = self.second or Score()
        own.alarms += ((trial, alarm) for alarm in alarms)
        own.runs += ((trial, run) for run in runs)

    @property
    def of_every_order(self) -> tuple[Score, ...]:
        """This score, and that of the second order if there is one."""
        return (self, self.second) if self.second else (self,)

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


def band(dtype: str, run: Run) -> str:
    """The row of the table that counts this run."""
    if run.kind == "structure":
        return "structure"
    return bands(dtype)[1 + sum(not run.effect > edge for edge in BANDS[dtype])]


def bands(dtype: str) -> list[str]:
    """The rows of a precision's table, largest effects first."""
    edges = [f"{edge:g}" for edge in BANDS[dtype]]
    between = [f"{low} to {high}" for high, low in pairwise(edges)]
    return ["structure", f"over {edges[0]}", *between, f"up to {edges[-1]}"]


def detection(score: Score) -> list[Detection]:
    """The share of errors caught, by precision, effect and judge."""
    rows = _grouped(
        ((trial.problem.dtype, band(trial.problem.dtype, run)), run)
        for trial, run in score.counted
    )
    return [
        Detection(dtype=d, effect=e, runs=len(rows[d, e]), caught=_shares(rows[d, e]))
        for d in BANDS
        for e in bands(d)
        if rows[d, e]
    ]


def accusations(score: Score, entries: Sequence[known.Known]) -> list[FalseAlarms]:
    """The share of right tensors rejected, by precision and judge."""
    rows = _grouped(
        (trial.problem.dtype, alarm)
        for trial, alarm in score.alarms
        if not listed(trial, alarm, entries)
    )
    return [
        FalseAlarms(
            dtype=dtype,
            tensors=sum(JUDGE in alarm.asked for alarm in rows[dtype]),
            accused=_shares(rows[dtype]),
        )
        for dtype in BANDS
        if any(JUDGE in alarm.asked for alarm in rows[dtype])
    ]


def by_mistake(score: Score) -> list[CaughtMistakes]:
    """Of each mistake in double backwards: runs that are required, and caught ones."""
    runs = [run for _, run in (score.second or Score()).counted]
    speaking = (run for run in runs if DOUBLE_BACKWARD.speaks_of(run))
    caught = _caught((run.mistake, JUDGE in run.accused_by) for run in speaking)
    return sorted(caught, key=lambda one: one.mistake)


def by_label(score: Score) -> list[CaughtMistakes]:
    """Of each kind of mistakes that was caught and diagnosed: those that were named."""
    said = (run for _, run in score.runs if run.said)
    return _caught((kind_of(r.mistake), named(r.mistake, r.said)) for r in said)


def _caught(pairs: Iterable[tuple[str, bool]]) -> list[CaughtMistakes]:
    """By mistake how many there are, the most first, and how many were caught."""
    caught = Counter[str]()
    asked = Counter[str]()
    for mistake, found in pairs:
        asked[mistake] += 1
        caught[mistake] += found
    return [
        CaughtMistakes(mistake=mistake, runs=count, caught=caught[mistake])
        for mistake, count in asked.most_common()
    ]


def _grouped(pairs: Iterable[tuple[Key, Judged]]) -> dict[Key, list[Judged]]:
    rows = defaultdict[Key, list[Judged]](list)
    for key, one in pairs:
        rows[key].append(one)
    return rows


def _shares(row: Sequence[Run | Alarm]) -> dict[str, float]:
    """Of each judge that was asked, the share that it accused."""
    asked = Counter(judge for one in row for judge in one.asked)
    caught = Counter(judge for one in row for judge in one.accused_by)
    return {judge: caught[judge] / asked[judge] for judge in JUDGES if asked[judge]}


# What is required -------------------------------------------------------------------


def requirements(
    score: Score, entries: Sequence[known.Known], *, tensors: int, some: bool = False
) -> Iterator[Requirement]:
    """Each requirement, the measured figure, and whether it is met.

    `tensors` is the smallest number of right gradients in float64 and in float32. Of
    `some` ops nothing is required in a band in which none of their errors lies.
    """
    structure = [r for _, r in score.counted if r.kind == "structure"]
    yield _met(structure, "None, shape, dtype, not finite: all caught", 1.0)
    for wanted in GOALS:
        runs = [
            run
            for trial, run in score.counted
            if trial.problem.dtype == wanted.dtype and wanted.speaks_of(run)
        ]
        if runs or not (some and structure):
            yield _met(runs, str(wanted), wanted.share)
    false = score.false_alarms(entries)
    found = f"{len(false)} of {len(score.alarms)}"
    yield Requirement("no false alarm", found, not false)
    for dtype in ("float64", "float32"):
        seen = sum(
            t.problem.dtype == dtype for t, a in score.alarms if JUDGE in a.asked
        )
        line = f"{tensors} right {dtype} tensors or more"
        yield Requirement(line, f"{seen}", seen >= tensors)


def second_requirements(
    score: Score, entries: Sequence[known.Known], *, tensors: int, planted: bool = True
) -> Iterator[Requirement]:
    """Likewise of the second order, whose right tensors have `tensors` as a minimum.

    `planted` says whether mistakes were planted: in double backwards alone.
    """
    second = score.second or Score()
    if planted:
        runs = [run for _, run in second.counted if DOUBLE_BACKWARD.speaks_of(run)]
        line = f"double backward, {DOUBLE_BACKWARD}"
        yield _met(runs, line, DOUBLE_BACKWARD.share)
    false, right = second.false_alarms(entries), len(second.alarms)
    found = f"{len(false)} of {right}"
    yield Requirement("second order, no false alarm", found, not false)
    line = f"{tensors} right tensors of second order or more"
    yield Requirement(line, f"{right}", right >= tensors)


def _met(runs: Sequence[Run], required: str, share: float) -> Requirement:
    caught = sum(JUDGE in run.accused_by for run in runs)
    per_cent = f", {caught / len(runs):.2%}" if runs else ""
    met = bool(runs) and caught >= share * len(runs)
    return Requirement(required, f"{caught} of {len(runs)}{per_cent}", met)


# Records ----------------------------------------------------------------------------


def records(score: Score) -> list[PlantedRecord]:
    """A record for each planted error and precision."""
    grouped: dict[tuple[str, str, str], list[tuple[Trial, Run]]] = {}
    of = score.of_every_order
    for trial, run in (pair for one in of for pair in one.runs):
        key = trial.problem.op.name, run.mistake, trial.problem.dtype
        grouped.setdefault(key, []).append((trial, run))
    return [_counts(key, members) for key, members in sorted(grouped.items())]


def _counts(
    key: tuple[str, str, str], members: Sequence[tuple[Trial, Run]]
) -> PlantedRecord:
    counted = [run for trial, run in members if matters(trial, run)]
    op, mistake, dtype = key
    return PlantedRecord(
        op=op,
        mistake=mistake,
        dtype=dtype,
        runs=len(members),
        silent=sum(run.kind == "silent" for _, run in members),
        counted=len(counted),
        asked=dict(Counter(judge for run in counted for judge in run.asked)),
        caught=dict(Counter(judge for run in counted for judge in run.accused_by)),
        diagnosed=sum(bool(run.said) for _, run in members),
        named=sum(bool(r.said) and named(mistake, r.said) for _, r in members),
    )


# Names ------------------------------------------------------------------------------

# Whether a diagnosis names a planted mistake is label against label, by kind. A kind is
# known by words in the mistake's name, and named by words in the sentence: both lists
# are about kinds and no single mistake; the first kind whose words occur counts. Is a
# sentence true? That is another question, of scripts/studies/diagnosis.py.
_FACTOR = "multiplied|divided|halved|twice|for \\d|wrong sign"
_PART = f"left out|zero|stands? for|uses|not applied|missing|alone|{_FACTOR}"
#: By kind: words of the mistake, and words of a sentence that names it.
LABELS = {
    "float32": ("float32", "float32"),
    "float16": ("float16", "float16"),
    "not finite": ("not a number|infinite", "not finite"),
    "clipped": ("clipped", "clipped"),
    "not written": ("not written|flushed", "zero"),
    "saved": ("earlier call", "revers|saved"),
    "ones": ("taken to be ones|cotangent is forgotten", "1 stands for|zero everywhere"),
    "swapped": ("swapped|exchanged", "values of|each other|stands? for|wrong sign"),
    "copies": (
        "first of|last row|overwritten|copies",
        "first|last|overwrit|out|halved",
    ),
    "part": ("lost|lacks|loses|forgets?|forgotten|missing|omitted|nothing|zero", _PART),
    "sign": ("sign|added$|adds|subtracted", "sign|subtract|add|\\||by -|1 [-/] "),
    "eps": ("eps|added to", "stands for [\\d.e-]+ in|after sqrt|is left out"),
    "order": ("revers|turned|transposed|order", "revers|turn|transpose|order|rows"),
    "shift": ("off by one|after the|one too", "shift|off|halved|last|first"),
    "mean": ("mean|average|divided by|counts? the", f"{_FACTOR}|mean|root"),
    "axis": ("along|runs over|sums the", "summed|sum of|alone|first|last"),
    "factor": ("cut to|too large|scale|twice|halve|factor|ln 2", f"{_FACTOR}|square"),
    "value": ("for|taken|takes|slope|that of|alone", f"{_PART}|values of|inverted"),
}


def kind_of(mistake: str) -> str:
    """The kind of a planted mistake."""
    kinds = (k for k, (of_it, _) in LABELS.items() if re.search(of_it, mistake))
    return next(kinds, "other")


def named(mistake: str, sentences: Iterable[str]) -> bool:
    """Whether each of the sentences names it; none does if it is of another kind."""
    _, words = LABELS.get(kind_of(mistake), ("", "$^"))
    return all(re.search(words, sentence) for sentence in sentences)
