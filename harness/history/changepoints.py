"""Finds lasting steps and slow drift in a series of measurements, one value per run.

Each jump is compared with the differences between equally long stretches elsewhere in
the *same series*, so no model of the noise is assumed. docs/changes.md has the method
and its scores; `steps` cuts a series into levels.

Constants without another source come from the tuning split of the evaluation script
scripts/studies/changes.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from gradwatch.harness.history.steps import (
    CUT,
    FURTHEST,
    SMALLEST,
    ChangeKind,
    Jump,
    Trace,
    Values,
    cuts_of,
    prepared,
    trace_of,
    with_ramps,
)

FEWEST = 5  # runs; a step needs three before and two after it

# The newest runs.
NEWEST = 3  # examined separately; one or two are as likely outliers
SUSPECT = 2.2  # for the newest runs, which are examined again every night
FLOOR = 0.2  # share of the new runs that may fall back to the old level
MARGIN = 0.3  # share of the jump by which the rest must pass everything before

# The report of a change.
NORMAL_95 = 1.96  # 97.5 % quantile of the normal distribution
MEDIAN = 1.2  # standard error of a median over that of the mean, at most sqrt(pi/2)
DOUBT = 0.7  # share of false reports among those that just reach CUT
FADING = 2.5  # standard errors above CUT that divide this share by e


@dataclass(frozen=True)
class Change:
    """One lasting change of the level of a series.

    index: position of the first value at the new level (for drift: on the ramp).
    relative_change: (after - before) / |before|; positive where the value grew.
    low, high: its 95 % interval, given that there is a change.
    before, after: the two levels, in the unit of the values.
    kind: "step", or "drift" for a slow change.
    confidence: 0 to 1; the share of such reports that were true in the tuning series.
    worse: whether the value moved in the direction that is not wanted.
    suspected: fewer than eight runs follow it, or only the kernel test for short series
        found it; time both commits again.
    """

    index: int
    relative_change: float
    low: float
    high: float
    before: float
    after: float
    kind: ChangeKind
    confidence: float
    worse: bool
    suspected: bool


def find_changes(
    values: ArrayLike, *, higher_is_better: bool = False
) -> tuple[Change, ...]:
    """Find the lasting steps and slow drifts in a series, one value per run.

    `values` is one-dimensional, oldest first, in any unit; None and NaN are runs
    without a value. Positive series are compared by ratios, others by differences
    relative to the old level, or to the median magnitude if that level is near zero.
    With fewer than five values the result is empty. Improvements are reported too, with
    `worse` False. Raises ValueError if `values` is not one-dimensional, not numeric, or
    infinite.
    """
    series = _series(values)
    present = np.flatnonzero(~np.isnan(series))
    raw = series[present]
    if len(raw) < FEWEST or not raw.any():
        return ()
    unit = None if raw.min() > 0 else float(np.median(np.abs(raw[raw != 0])))
    work = np.log(raw) if unit is None else raw / unit
    return tuple(
        _change(jump, int(present[jump.place]), unit, higher_is_better)
        for jump in _jumps(work)
    )


def _series(values: ArrayLike) -> Values:
    """Return float64 values, NaN for missing ones, or raise ValueError."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"values must be one-dimensional, not of shape {array.shape}")
    if array.dtype.kind == "O":
        missing = [np.nan if value is None else value for value in array]
        if any(isinstance(value, (str, bytes)) for value in missing):
            raise ValueError("values must be numbers, None or NaN, not text")
        array = np.asarray(missing)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"values must be numbers, None or NaN, not {array.dtype}")
    series = array.astype(np.float64)
    if np.isinf(series).any():
        raise ValueError(f"value {int(np.argmax(np.isinf(series)))} is infinite")
    return series


def _change(
    jump: Jump, index: int, unit: float | None, higher_is_better: bool
) -> Change:
    """Convert a jump from the working scale to the unit of the values."""
    difference = jump.after - jump.before
    margin = NORMAL_95 * MEDIAN * jump.error
    ends = (difference - margin, difference + margin)
    if unit is None:
        before, after = math.exp(jump.before), math.exp(jump.after)
        relative, low, high = (math.expm1(d) for d in (difference, *ends))
    else:
        before, after = jump.before * unit, jump.after * unit
        base = abs(jump.before) if abs(jump.before) > SMALLEST else 1.0
        relative, low, high = (d / base for d in (difference, *ends))
    excess = max(abs(difference) / jump.error - CUT, 0.0)
    return Change(
        index=index,
        relative_change=relative,
        low=low,
        high=high,
        before=before,
        after=after,
        kind=jump.kind,
        confidence=1 - DOUBT * math.exp(-excess / FADING),
        worse=(relative > 0) != higher_is_better,
        suspected=bool(jump.suspected or jump.weak),  # NumPy's could not be stored
    )


def _jumps(work: Values) -> list[Jump]:
    """Find all changes on the working scale, in order."""
    trace = prepared(trace_of(work))
    jumps = with_ramps(cuts_of(trace), trace)
    lasting = [jump for jump in jumps if not jump.suspected]
    steady = lasting[-1].place if lasting else 0
    new = [j for j in jumps if j.suspected and _unseen(work, steady, j.place)][:1]
    newest = None if new else _newest(work, steady, trace)
    changes = lasting + new + ([newest] if newest else [])
    return sorted(changes, key=lambda jump: jump.place)


def _newest(work: Values, steady: int, trace: Trace) -> Jump | None:
    """Report the newest runs as suspected if they differ from those since `steady`."""
    count = min(NEWEST, len(work) - steady - (FEWEST - 2))
    place = len(work) - count
    if count < 2 or not _unseen(work, steady, place):
        return None
    before = work[max(steady, place - FURTHEST) : place]
    past, level = float(np.median(before)), float(np.median(work[place:]))
    error = trace.error(len(before), count)
    if abs(level - past) < trace.caution * max(SUSPECT * error, SMALLEST):
        return None
    return Jump(place, past, level, error, "step", True)


def _unseen(work: Values, steady: int, place: int) -> bool:
    """Whether no stretch since `steady` resembles the runs from `place` on.

    Bursts and modes return; a change of the code gives values that are new.
    """
    before, now = work[steady:place], work[place:]
    side = 1 if np.median(now) > np.median(before) else -1
    width = min(len(now) - 1, len(before))
    stretches = np.lib.stride_tricks.sliding_window_view(side * before, width)
    floor = np.quantile(side * now, FLOOR, method="lower")
    beyond = floor - np.quantile(stretches, FLOOR, axis=1, method="lower").max()
    return bool(beyond > MARGIN * abs(np.median(now) - np.median(before)))
