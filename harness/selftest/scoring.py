"""What share of the planted errors each judge catches, and what it accuses falsely.

A planted error is counted on a trial where it matters there: its effect, measured in
extended precision, exceeds the unit roundoff of the precision under test, in a tensor
of which the comparison can say something. The rest are `equivalent` or `silent`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from harness.judging import known
from harness.judging.cases import Trial
from harness.judging.rounding import PRECISIONS
from harness.selftest.examine import JUDGE, Alarm, Run
from harness.selftest.rivals import COMPARISONS, GRADCHECKS

JUDGES = (JUDGE, *COMPARISONS, *GRADCHECKS)
#: Effects from which a band reaches up to the one before it, as in the tables.
BANDS = {
    "float64": (1e-3, 1e-6, 1e-9, 1e-12),
    "float32": (1e-3, 1e-6),
    "float16": (1e-1, 1e-2),
    "bfloat16": (1e-1, 1e-2),
}


@dataclass(frozen=True)
class Requirement:
    """The share of the planted errors of some effect that the judge must catch.

    The figures are the project's goal, set before any of them was measured.
    """

    dtype: str
    above: float
    up_to: float
    share: float

    def speaks_of(self, run: Run) -> bool:
        """Whether a run's effect is within the bounds."""
        return run.kind == "number" and self.above < run.effect <= self.up_to

    def __str__(self) -> str:
        bounds = f"effect over {self.above:g}"
        if self.up_to < math.inf:
            bounds = f"effect {self.above:g} to {self.up_to:g}"
        return f"{self.dtype}, {bounds}: at least {self.share:.1%} caught"


REQUIREMENTS = (
    Requirement("float64", 1e-9, math.inf, 0.995),
    Requirement("float32", 1e-3, math.inf, 0.995),
    Requirement("float32", 1e-6, 1e-3, 0.85),
    Requirement("float16", 0.1, math.inf, 0.99),
    Requirement("bfloat16", 0.1, math.inf, 0.99),
)


@dataclass
class Score:
    """All runs and alarms of a selftest."""

    runs: list[tuple[Trial, Run]] = field(default_factory=list)
    alarms: list[tuple[Trial, Alarm]] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, trial: Trial, alarms: Iterable[Alarm], runs: Iterable[Run]) -> None:
        """Take up what a worker has answered."""
        self.alarms += ((trial, alarm) for alarm in alarms)
        self.runs += ((trial, run) for run in runs)

    @property
    def counted(self) -> list[tuple[Trial, Run]]:
        """The runs in which the planted error matters."""
        return [(trial, run) for trial, run in self.runs if matters(trial, run)]

    @property
    def missed(self) -> list[tuple[Trial, Run]]:
        """Those that matter and that the judge let pass."""
        return [(t, r) for t, r in self.counted if JUDGE not in r.accused_by]

    def false_alarms(self, entries: Sequence[known.Known]) -> list[tuple[Trial, Alarm]]:
        """Right tensors that the judge rejects, listed framework defects apart."""
        found = [(t, a) for t, a in self.alarms if JUDGE in a.accused_by]
        return [(t, a) for t, a in found if not listed(t, a, entries)]


def matters(trial: Trial, run: Run) -> bool:
    """Whether the planted error could be seen in this precision at all."""
    if run.kind == "number":
        return run.effect > PRECISIONS[trial.problem.dtype].roundoff
    return run.kind == "structure"


def listed(trial: Trial, alarm: Alarm, entries: Sequence[known.Known]) -> bool:
    """Whether a rejected tensor is a framework defect that an entry announces."""
    record = {
        "op": trial.problem.op.name,
        "case": trial.name,
        "backend": alarm.backend,
        "framework_version": alarm.version,
        "tensor": alarm.tensor,
    }
    return any(k.covers(record) and k.verdict == alarm.verdict for k in entries)


# Tables -----------------------------------------------------------------------------


def band(dtype: str, run: Run) -> str:
    """The row of the table in which a run is counted."""
    if run.kind == "structure":
        return "structure"
    upper = ""
    for edge in BANDS[dtype]:
        if run.effect > edge:
            return f"{edge:g} to {upper}" if upper else f"over {edge:g}"
        upper = f"{edge:g}"
    return f"up to {upper}"


def bands(dtype: str) -> list[str]:
    """Rows of the table of a precision, the largest effects first."""
    edges = [f"{edge:g}" for edge in BANDS[dtype]]
    between = [f"{low} to {high}" for high, low in pairwise(edges)]
    return ["structure", f"over {edges[0]}", *between, f"up to {edges[-1]}"]


def detection(score: Score) -> list[dict[str, Any]]:
    """Caught shares by precision, effect and judge."""
    asked: Counter[tuple[str, str, str]] = Counter()
    caught: Counter[tuple[str, str, str]] = Counter()
    for trial, run in score.counted:
        dtype = trial.problem.dtype
        row = dtype, band(dtype, run)
        asked.update((*row, judge) for judge in run.asked)
        caught.update((*row, judge) for judge in run.accused_by)
    return [
        {
            "dtype": dtype,
            "effect": effect,
            "runs": asked[dtype, effect, JUDGE],
            "caught": _shares(caught, asked, (dtype, effect)),
        }
        for dtype in BANDS
        for effect in bands(dtype)
        if asked[dtype, effect, JUDGE]
    ]


def accusations(score: Score, entries: Sequence[known.Known]) -> list[dict[str, Any]]:
    """Shares of right tensors rejected by precision and judge."""
    asked: Counter[tuple[str, str]] = Counter()
    caught: Counter[tuple[str, str]] = Counter()
    for trial, alarm in score.alarms:
        if listed(trial, alarm, entries):
            continue
        asked.update((trial.problem.dtype, judge) for judge in alarm.asked)
        caught.update((trial.problem.dtype, judge) for judge in alarm.accused_by)
    return [
        {
            "dtype": dtype,
            "tensors": asked[dtype, JUDGE],
            "accused": _shares(caught, asked, (dtype,)),
        }
        for dtype in BANDS
        if asked[dtype, JUDGE]
    ]


def _shares(
    part: Mapping[Any, int], whole: Mapping[Any, int], row: tuple[str, ...]
) -> dict[str, float]:
    judges = [judge for judge in JUDGES if whole.get((*row, judge))]
    return {j: part.get((*row, j), 0) / whole[(*row, j)] for j in judges}


# What is required -------------------------------------------------------------------


def requirements(
    score: Score, entries: Sequence[known.Known], *, tensors: int
) -> Iterator[tuple[str, str, bool]]:
    """Each requirement, what was found, and whether it is met.

    `tensors` is the least number of right gradients of each of float64 and float32.
    """
    structure = [r for _, r in score.counted if r.kind == "structure"]
    yield (*_met(structure, "None, shape, dtype, not finite: all caught", 1.0),)
    for wanted in REQUIREMENTS:
        runs = [
            run
            for trial, run in score.counted
            if trial.problem.dtype == wanted.dtype and wanted.speaks_of(run)
        ]
        yield (*_met(runs, str(wanted), wanted.share),)
    false = score.false_alarms(entries)
    yield "no false alarm", f"{len(false)} of {len(score.alarms)}", not false
    for dtype in ("float64", "float32"):
        seen = sum(
            t.problem.dtype == dtype for t, a in score.alarms if JUDGE in a.asked
        )
        yield f"{tensors} right {dtype} tensors or more", f"{seen}", seen >= tensors


def _met(runs: Sequence[Run], told: str, share: float) -> tuple[str, str, bool]:
    caught = sum(JUDGE in run.accused_by for run in runs)
    found = f"{caught} of {len(runs)}" + (f", {caught / len(runs):.2%}" if runs else "")
    return told, found, bool(runs) and caught >= share * len(runs)


def why_missed(run: Run) -> str:
    """The reason for which the judge let a planted error pass."""
    if run.reach <= run.limit:
        return (
            f"rounding explains it: the error is {run.reach:.3g} rounding radii, "
            f"the limit {run.limit:.3g}"
        )
    return (
        f"rounding hides it: {run.reach:.3g} radii in extended precision, "
        f"{run.ratio:.3g} in this one, the limit is {run.limit:.3g}"
    )


# Records ----------------------------------------------------------------------------


def records(score: Score) -> list[dict[str, Any]]:
    """One for each planted error and precision, then one for each miss."""
    grouped: dict[tuple[str, str, str], list[tuple[Trial, Run]]] = {}
    for trial, run in score.runs:
        key = trial.problem.op.name, run.mistake, trial.problem.dtype
        grouped.setdefault(key, []).append((trial, run))
    counts = [_counts(key, members) for key, members in sorted(grouped.items())]
    misses = [
        {
            "record": "miss",
            "op": trial.problem.op.name,
            "case": trial.name,
            "dtype": trial.problem.dtype,
            **asdict(run),
            "reason": why_missed(run),
        }
        for trial, run in score.missed
    ]
    return counts + misses


def _counts(
    key: tuple[str, str, str], members: Sequence[tuple[Trial, Run]]
) -> dict[str, Any]:
    counted = [run for trial, run in members if matters(trial, run)]
    op, mistake, dtype = key
    return {
        "record": "planted",
        "op": op,
        "mistake": mistake,
        "dtype": dtype,
        "runs": len(members),
        "silent": sum(run.kind == "silent" for _, run in members),
        "counted": len(counted),
        "asked": Counter(judge for run in counted for judge in run.asked),
        "caught": Counter(judge for run in counted for judge in run.accused_by),
    }
