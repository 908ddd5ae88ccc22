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

    There are none in `SHORT` runs or more. The old value must lie outside the new one's
    interval. The other end is not asked: other processes only make a run slower, and
    its interval wide.
    """
    if len(runs) >= SHORT:
        return
    for index, (old, new) in enumerate(pairwise(map(_ends, runs)), 1):
        (before, least, most), (after, low, high) = old, new
        if min(before, after) <= 0 or low <= before <= high:
            continue
        if abs(math.log(after / before)) > math.log1p(budget):
            yield Change(
                index=index,
                relative_change=after / before - 1,
                low=low / most - 1,
                high=high / least - 1 if least > 0 else math.inf,
                before=before,
                after=after,
                kind="step",
                confidence=CONFIDENCE,
                worse=after > before,
                suspected=True,
            )


def _ends(run: Entry) -> tuple[float, float, float]:
    """A run's value, with the ends of its interval: itself, if it has no samples."""
    value = run.value or 0.0
    low, high = (value if end is None else end for end in (run.low, run.high))
    return value, low, high
