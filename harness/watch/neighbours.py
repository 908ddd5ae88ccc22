"""Compares neighbouring runs of a history that is too short for statistics.

A handful of runs does not tell how much the figures scatter, so no search of the series
can find a step after the first run or before the last one. Two neighbours are therefore
compared directly. What differs is only suspected: both commits have to be measured
again, side by side (`gradwatch watch --confirm`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from gradwatch.harness.history.changepoints import Change
from gradwatch.harness.history.noise import LASTING
from gradwatch.harness.history.series import Entry

#: Runs: in longer series `find_changes` sees steps of 20 % that have three runs on
#: either side (noise of 2 %).
SHORT = LASTING

#: Nothing is known of how often such a report is right.
CONFIDENCE = 0.5


def steps_between(runs: Sequence[Entry], budget: float) -> Iterator[Change]:
    """The steps between neighbours that differ by more than a series' budget.

    Args:
        runs: The measured entries of a series, oldest first; with `SHORT` of them or
            more there are none.
        budget: The share by which a value may grow; a decrease by the same factor is an
            improvement.

    The old value must lie outside the new one's interval. The other end is not asked:
    other processes only make a run slower, and its interval wide.
    """
    if len(runs) >= SHORT:
        return
    for index, (old, new) in enumerate(pairwise(map(_Figure.of, runs)), 1):
        if min(old.value, new.value) <= 0 or new.spans(old.value):
            continue
        if abs(math.log(new.value / old.value)) > math.log1p(budget):
            yield old.step_to(new, index)


class _Figure(NamedTuple):
    """A run's value, with the ends of its interval: itself, if it has no samples."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, run: Entry) -> _Figure:
        value = run.value or 0.0
        return cls(
            value,
            value if run.low is None else run.low,
            value if run.high is None else run.high,
        )

    def spans(self, value: float) -> bool:
        """Whether a value lies within the interval."""
        return self.low <= value <= self.high

    def step_to(self, new: _Figure, index: int) -> Change:
        return Change(
            index=index,
            relative_change=new.value / self.value - 1,
            low=new.low / self.high - 1,
            high=new.high / self.low - 1 if self.low > 0 else math.inf,
            before=self.value,
            after=new.value,
            kind="step",
            confidence=CONFIDENCE,
            worse=new.value > self.value,
            suspected=True,
        )
