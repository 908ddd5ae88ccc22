"""How the judge's one constant is chosen: what a smaller or larger one would do.

A ratio beyond c + sqrt(n)/2 is a wrong gradient
(`limit_for` in harness/judging/rounding/errors.py). Every run keeps its ratio, so that
c can be moved without running anything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.rounding.errors import limit_for
from gradwatch.harness.selftest import scoring
from gradwatch.harness.selftest.examine import JUDGE
from gradwatch.harness.selftest.scoring import Goal, Score

SHIPPED = limit_for(0)
#: The bands of which detection could suffer from a larger constant.
CURVES = tuple(r for r in scoring.GOALS if r.dtype in ("float64", "float32"))


@dataclass(frozen=True)
class Excess:
    """Ratios with their allowance for the length of sums, sqrt(n)/2, taken off.

    `right` holds those of right tensors; `wrong[i]` those of the planted errors that
    `CURVES[i]` speaks of.
    """

    right: NDArray[np.float64]
    wrong: Sequence[NDArray[np.float64]]

    @property
    def largest_right(self) -> float:
        """The smallest constant that accuses no right tensor."""
        return float(self.right.max(initial=0.0))


def excess(score: Score, entries: Sequence[known.Known]) -> Excess:
    """The ratios of a selftest, without listed framework defects.

    What is `imprecise` is excused by another rule: its ratio may be anything.
    """
    right = [
        alarm.ratio - (alarm.limit - SHIPPED)
        for trial, alarm in score.alarms
        if JUDGE in alarm.asked
        and alarm.verdict != "imprecise"
        and not scoring.listed(trial, alarm, entries)
    ]
    wrong = [_array(_of(score, wanted)) for wanted in CURVES]
    return Excess(_array(r for r in right if r == r), wrong)


def _of(score: Score, wanted: Goal) -> Iterable[float]:
    for trial, run in score.counted:
        if trial.problem.dtype == wanted.dtype and wanted.speaks_of(run):
            yield run.ratio - (run.limit - SHIPPED)


def _array(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array(list(values), dtype=np.float64)
