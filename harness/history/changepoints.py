"""Finds lasting steps and slow drift in a series of measurements, one value per run.

A jump is compared with the differences between equally long stretches elsewhere in the
*same series*: no model of the noise is assumed. docs/changes.md has method and scores.
Candidates are the local maxima of the differences between neighbouring windows. The
weakest is removed until every cut has `CUT` standard errors: first with clipped means,
then, at a refined position and on the original values, with medians. The variance of a
mean of w values, with autocorrelation, is that of the differences between neighbouring
windows of w values. Constants without another source come from the tuning split of
scripts/studies/changes.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import ArrayLike, NDArray

Values = NDArray[np.float64]
Cut = tuple[int, int, int]  # start of the level before, start of the next, its end
ChangeKind = Literal["step", "drift", "creep"]  # a creep is found by the watch alone

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

LASTING = 8  # a shorter level that goes back is a burst, a newer one is suspected
FEW = 45  # runs; in shorter series a kernel test also searches for large steps

# Caution with few values, and with many.
SCARCE = 70.0  # runs; with fewer the noise is uncertain, and all thresholds grow
SCARCEST = 1.6  # largest factor by which they grow
MANY = 300  # runs; longer series have more positions at which chance makes a jump
CROWDED = 0.35  # share by which CUT grows for each factor of e in the length

# Stray runs and clipping, in robust standard deviations from the running median.
HALF = LASTING - 1  # runs on each side, so that no burst has the majority
STRAY = 4.0  # a run beyond this can be dropped
STRAYS = 0.1  # but at most this share of the runs: a more frequent mode stays
CLIP = 2.5  # limits the influence of the tail of the noise

# Windows, in runs: two for each factor of 2.
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
NEAREST, FURTHEST = 6, 96  # least and most runs on each side that make a level
TINY = 1e-24  # square of a relative noise below all rounding; keeps constants finite

# Which cuts count. Thresholds are in standard errors of the jump.
CUT = 3.0  # with SCARCE, 3 % of the stable tuning series of 60 to 300 runs alarm
SMALLEST = 0.011  # relative change, times the caution; smaller ones are ignored
ENDING = 4  # at the ends of the series, where it cannot be seen to go back

# The noise is estimated again without the clearest steps.
PLAIN = 1.2  # for a step that is left out when the noise is estimated
PLAINEST = 80  # runs for each such step; two are always allowed
FITTED = 3.0  # runs that each such step costs in the estimate of the noise

# The kernel test for short series.
LARGE = 0.04  # relative change from which the kernel test searches
ALIKE = 3  # runs on each side of a step that it finds

# Slow drift: a ramp that fits a stretch better than its steps do.
RAMP = 12  # runs; a faster change is a step
GRID = 12  # starts and ends of a ramp that are tried
BETTER = 0.75  # a ramp must leave at most this share of the steps' squared residuals
RAMP_ERRORS = 8.0  # standard errors of its height
RAMP_SMALLEST = 0.08  # its height; a smaller one looks like wander

# Candidates: windows in runs, each about 1.5 times the last.
SCAN = (2, 3, 4, 6, 9, 13, 20, 30, 45)
FAINT = 2.5  # standard errors of a candidate; low, since most are removed later
SHIFT = 6  # runs by which a cut can move from a peak to its position


@dataclass(frozen=True)
class Change:
    """One lasting change of the level of a series.

    index: position of the first value at the new level (for drift: on the ramp).
    relative_change: (after - before) / |before|; positive where the value grew.
    low, high: its 95 % interval, given that there is a change.
    before, after: the two levels, in the unit of the values.
    kind: "step", or "drift" for a slow change.
    confidence: 0 to 1; the share of such reports that were true in the tuning series.
    worse: whether the value moved in the unwanted direction.
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
    `worse` False. Raises ValueError unless `values` are numbers in a row, not infinite.
    """
    series = _series(values)
    present = np.flatnonzero(~np.isnan(series))
    raw = series[present]
    if len(raw) < FEWEST or not raw.any():
        return ()
    unit = None if raw.min() > 0 else float(np.median(np.abs(raw[raw != 0])))
    work = np.log(raw) if unit is None else raw / unit
    trace = prepared(trace_of(work))
    jumps = with_ramps(cuts_of(trace), trace)
    lasting = [jump for jump in jumps if not jump.suspected]
    steady = lasting[-1].place if lasting else 0
    new = [j for j in jumps if j.suspected and _unseen(work, steady, j.place)][:1]
    newest = None if new else _newest(work, steady, trace)
    changes = lasting + new + ([newest] if newest else [])
    return tuple(
        _change(jump, int(present[jump.place]), unit, higher_is_better)
        for jump in sorted(changes, key=lambda jump: jump.place)
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


def _change(jump: Jump, at: int, unit: float | None, higher_is_better: bool) -> Change:
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
        index=at,
        relative_change=relative,
        low=low,
        high=high,
        before=before,
        after=after,
        kind=jump.kind,
        confidence=1 - DOUBT * math.exp(-excess / FADING),
        worse=(relative > 0) != higher_is_better,
        suspected=bool(jump.suspected or jump.weak),  # NumPy's type cannot be stored
    )


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
    stretches = sliding_window_view(side * before, width)
    floor = np.quantile(side * now, FLOOR, method="lower")
    beyond = floor - np.quantile(stretches, FLOOR, axis=1, method="lower").max()
    return bool(beyond > MARGIN * abs(np.median(now) - np.median(before)))


# Noise ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Trace:
    """A prepared series: outliers dropped, values clipped, noise estimated."""

    kept: NDArray[np.intp]  # positions of the values kept
    values: Values  # the kept values, unchanged
    sums: Values  # running sums of the clipped ones, from 0
    variances: Values  # [w]: variance of the mean of w neighbouring runs
    reach: int  # runs on each side; a longer mean is not more precise
    caution: float  # factor on every threshold: in short series the noise is uncertain
    crowd: float  # factor on CUT: among many positions one will look like a step

    def error(self, left: int, right: int) -> float:
        """Standard error of the difference between the means of both sides."""
        reach, variances = self.reach, self.variances
        return math.sqrt(variances[min(left, reach)] + variances[min(right, reach)])

    def levels(self, cut: Cut) -> tuple[float, float]:
        """The median levels on both sides of a cut, of the runs within reach."""
        start, place, end = cut
        before = self.values[max(start, place - self.reach) : place]
        after = self.values[place : min(end, place + self.reach)]
        return float(np.median(before)), float(np.median(after))


def trace_of(work: Values) -> Trace:
    """Drop outliers and short bursts, clip the rest, and estimate the noise."""
    distance = np.abs(work - _running_median(work))
    limit = max(STRAY * _deviation(distance), float(np.quantile(distance, 1 - STRAYS)))
    stays = distance <= limit
    stays[-HALF:] = True  # it is not known yet whether these last
    stays |= len(work) < FEW  # nor, in a short series, whether the first ones did
    kept = np.flatnonzero(stays)
    clipped = work[kept]
    if len(kept) > 2 * HALF:  # of so few the running median would blur a step
        middle = _running_median(clipped)
        off = clipped - middle
        trimmed = np.sort(off**2)[: int(0.95 * len(off))]  # MAD is 0 on a coarse clock
        bound = CLIP * max(_deviation(np.abs(off)), math.sqrt(trimmed.mean()))
        clipped = middle + np.clip(off, -bound, bound)
    sums = np.concatenate([[0.0], np.cumsum(clipped)])
    variances, reach = variances_of(sums)
    caution = 1 + min(SCARCE / len(kept), SCARCEST)
    crowd = 1 + CROWDED * max(math.log(len(kept) / MANY), 0.0)
    return Trace(kept, work[kept], sums, variances, reach, caution, crowd)


def _running_median(values: Values) -> Values:
    """Median over `HALF` runs on each side, fewer at the ends."""
    half = min(HALF, (len(values) - 1) // 2)
    padded = np.pad(values, half, constant_values=np.nan)
    medians: Values = np.nanmedian(sliding_window_view(padded, 2 * half + 1), axis=1)
    return medians


def _deviation(distances: Values) -> float:
    """Robust standard deviation from absolute distances (1.4826: normal quartile)."""
    return 1.4826 * float(np.median(distances))


def contrast(sums: Values, width: int) -> Values:
    """Mean of `width` runs from t on minus the mean of those before, t = width, ..."""
    means = (sums[width:] - sums[:-width]) / width
    difference: Values = means[width:] - means[:-width]
    return difference


def variances_of(sums: Values) -> tuple[Values, int]:
    """Return the variance of a mean of w neighbouring runs, and the reach.

    The variance is half the squared robust deviation of the contrasts of width w: a few
    true steps do not change it, but autocorrelation and wander do. It never decreases
    faster than 1/w. Widths that are too large for the series are extrapolated with the
    last power of w.
    """
    count = len(sums) - 1
    widths = np.array([w for w in WINDOWS if w <= max(count // 8, 1)])
    single = contrast(sums, 1)
    quiet = max(int(0.9 * (len(single) - 1)), 1)  # without the largest: the steps
    trimmed = np.sort(single**2)[:quiet].mean() / 2
    squares = [_deviation(np.abs(contrast(sums, w))) ** 2 / 2 * w for w in widths]
    squares[0] = max(squares[0], float(trimmed), TINY)
    growth = np.log(np.maximum.accumulate(squares))
    logs, known = np.log(np.arange(1, count + 1)), np.log(widths)
    curve = np.interp(logs, known, growth)
    if len(widths) > 4:  # fewer cannot give the power
        slope = (growth[-1] - growth[-3]) / (known[-1] - known[-3])
        curve += slope * np.maximum(logs - known[-1], 0)
    variances = np.exp(curve - logs)
    reach = max(int(np.argmin(variances[:FURTHEST])) + 1, min(NEAREST, count // 2))
    return np.concatenate([[np.inf], variances]), reach


# Steps ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jump:
    """A change on the working scale; `place` is an index into the present values."""

    place: int
    before: float
    after: float
    error: float  # standard error of after - before
    kind: ChangeKind
    suspected: bool
    weak: bool = False  # found by the kernel test alone


def prepared(trace: Trace) -> Trace:
    """A copy with the noise estimated without its clearest steps.

    Only a few steps are left out, because wander would be cut into steps as well.
    """
    count = len(trace.values)
    most = max(2, count // PLAINEST)
    cuts = _pruned([0, *_candidates(trace), count], trace, enough=PLAIN, most=most)
    pieces = np.split(np.diff(trace.sums), cuts[1:-1])
    flat = np.concatenate([piece - piece.mean() for piece in pieces])
    variances, reach = variances_of(np.concatenate([[0.0], np.cumsum(flat)]))
    left = max(1 - FITTED * (len(cuts) - 2) / count, 0.5)
    return replace(trace, variances=variances / left, reach=reach)


def cuts_of(trace: Trace) -> list[int]:
    """Find the cuts of a series; its two ends are included."""
    count = len(trace.values)
    cuts = _pruned([0, *_candidates(trace), count], trace)
    placed = {_placed(cut, trace) for cut in neighbours(cuts)} - {0}
    cuts = _pruned([0, *sorted(placed), count], trace, strength=_median_strength)
    return _with_kernel(cuts, trace) if 2 * ALIKE <= count < FEW else cuts


def _with_kernel(cuts: list[int], trace: Trace) -> list[int]:
    """Add the large steps that a kernel test finds away from known ones.

    A few runs give a poor estimate of the scatter of their means, but a kernel test can
    still tell that two stretches differ. Source: Arlot, Celisse and Harchaoui, A kernel
    multiple change-point algorithm via model selection, JMLR 20 (2019), by ruptures.
    """
    import ruptures  # takes half a second

    test = ruptures.KernelCPD(kernel="rbf", min_size=ALIKE).fit(trace.values[:, None])
    places = test.predict(pen=math.log(len(trace.values)))[:-1]
    new = {at for at in places if all(abs(at - cut) > SHIFT for cut in cuts[1:-1])}
    merged = sorted({*cuts, *new})

    def large(i: int) -> bool:
        before, after = trace.levels(_cut(merged, i))
        return abs(after - before) >= LARGE

    return [cut for i, cut in enumerate(merged) if cut not in new or large(i)]


def _cut(cuts: list[int], i: int) -> Cut:
    return cuts[i - 1], cuts[i], cuts[i + 1]


def neighbours(cuts: list[int]) -> list[Cut]:
    """Each inner cut with the one before it and the one after it."""
    return [_cut(cuts, i) for i in range(1, len(cuts) - 1)]


def _candidates(trace: Trace) -> list[int]:
    """Positions at which some contrast is a local maximum and not negligible."""
    from scipy.ndimage import maximum_filter1d  # takes a while to import

    count = len(trace.values)
    strongest = np.zeros(count + 1)
    for width in SCAN:
        if 2 * width > count:
            break
        error = math.sqrt(2 * trace.variances[min(width, trace.reach)])
        strength = np.abs(contrast(trace.sums, width)) / error
        highest = maximum_filter1d(strength, 2 * width + 1)
        peak = (strength >= highest) & (strength > FAINT)
        inside = strongest[width : width + len(strength)]
        inside[peak] = np.maximum(inside[peak], strength[peak])
    peak = (strongest > 0) & (strongest >= maximum_filter1d(strongest, 3))
    places: list[int] = np.flatnonzero(peak).tolist()
    return [place for place in places if 2 <= place <= count - 2]


def _mean_strength(cut: Cut, trace: Trace) -> float:
    """The jump of the clipped means at a cut, in standard errors."""
    start, place, end = cut
    left, right = min(place - start, trace.reach), min(end - place, trace.reach)
    sums = trace.sums
    after = (sums[place + right] - sums[place]) / right
    before = (sums[place] - sums[place - left]) / left
    return _strength(float(after - before), cut, trace)


def _median_strength(cut: Cut, trace: Trace) -> float:
    """The jump of the medians of the original values at a cut, in standard errors."""
    before, after = trace.levels(cut)
    return _strength(after - before, cut, trace)


def _pruned(
    cuts: list[int],
    trace: Trace,
    *,
    strength: Callable[[Cut, Trace], float] = _mean_strength,
    enough: float = CUT,
    most: float = math.inf,
) -> list[int]:
    """Remove the weakest cut and evaluate its neighbours again, until all hold."""
    strengths = [strength(cut, trace) for cut in neighbours(cuts)]
    enough *= trace.caution * trace.crowd
    while strengths:
        weakest = min(range(len(strengths)), key=strengths.__getitem__)
        if len(strengths) <= most and strengths[weakest] >= enough:
            break
        del cuts[weakest + 1], strengths[weakest]
        for i in range(max(weakest - 1, 0), min(weakest + 1, len(strengths))):
            strengths[i] = strength(_cut(cuts, i + 1), trace)
    return cuts


def _strength(jump: float, cut: Cut, trace: Trace) -> float:
    """The size of a jump in standard errors; halved if a level did not last."""
    start, place, end = cut
    if abs(jump) < SMALLEST * trace.caution:
        return 0.0
    lasted = place - start >= (LASTING if start else ENDING) and (
        end - place >= (LASTING if end < len(trace.values) else ENDING)
    )
    strength = abs(jump) / trace.error(place - start, end - place)
    return strength if lasted else strength / 2


def _placed(cut: Cut, trace: Trace) -> int:
    """Move a cut by up to `SHIFT` runs to the exact position of the step.

    Each run votes for the level that it is nearer to, with a weight of at most one, so
    that an outlier next to the step does not move it.
    """
    start, place, end = cut
    first, last = max(start + 2, place - SHIFT), min(end - 2, place + SHIFT)
    if last <= first:
        return place
    before, after = trace.levels(cut)
    half = (after - before) / 2
    if half == 0:
        return place
    sides = np.clip((trace.values[first:last] - before - half) / half, -1, 1)
    return first + int(np.argmin(np.concatenate([[0.0], np.cumsum(sides)])))


def step(cut: Cut, trace: Trace) -> Jump:
    """The step at a cut, with its error and how far it can be trusted."""
    start, place, end = cut
    before, after = trace.levels(cut)
    error = trace.error(place - start, end - place)
    recent = len(trace.values) - place < LASTING
    weak = _median_strength(cut, trace) < CUT * trace.caution
    return Jump(int(trace.kept[place]), before, after, error, "step", recent, weak)


def with_ramps(cuts: list[int], trace: Trace) -> list[Jump]:
    """Turn cuts into steps; cuts that a ramp fits better become drift."""
    steps = [step(cut, trace) for cut in neighbours(cuts)]
    if not steps:
        ramp = _ramp(cuts, trace)
        return [ramp] if ramp else []
    jumps: list[Jump] = []
    done = 0
    for _, alike in groupby(steps, key=lambda step: step.after > step.before):
        group = list(alike)
        ramp = _ramp(cuts[done : done + len(group) + 2], trace)
        jumps += [ramp] if ramp else group
        done += len(group)
    return jumps


def _ramp(cuts: list[int], trace: Trace) -> Jump | None:
    """Fit level, ramp, level to the stretch of these cuts; None if cuts fit better."""
    start, *inner, end = cuts
    if inner:
        start = max(start, inner[0] - FURTHEST)
        end = min(end, inner[-1] + FURTHEST)
    count = end - start
    if count < 2 * RAMP:
        return None
    values = np.diff(trace.sums[start : end + 1])
    first, last = np.triu_indices(GRID)
    starts = np.linspace(0, count - RAMP, GRID)[first]
    lengths = (np.linspace(RAMP, count, GRID)[last] - starts)[:, None]
    shapes = np.clip((np.arange(count) - starts[:, None]) / lengths, 0, 1)
    shapes -= shapes.mean(axis=1, keepdims=True)
    weights = (shapes**2).sum(axis=1)
    heights = shapes @ values / weights
    best = int(np.argmax(heights**2 * weights))
    height = float(heights[best])
    left = values - values.mean() - height * shapes[best]
    pieces = np.split(values, [place - start for place in inner])
    stairs = sum(float(((piece - piece.mean()) ** 2).sum()) for piece in pieces)
    # Variance of residuals, increased by their first autocorrelation as for AR(1).
    square = float((left**2).mean()) + TINY
    one = float((left[1:] * left[:-1]).mean()) / square
    one = min(max(one, 0.0), 0.95)  # with more, the stretch is too short
    error = math.sqrt(square * (1 + one) / (1 - one) / weights[best])
    if (left**2).sum() > BETTER * stairs or abs(height) < RAMP_SMALLEST:
        return None
    if abs(height) < RAMP_ERRORS * trace.caution * error:
        return None
    before = float(values.mean() + height * shapes[best].min())
    place = int(trace.kept[start + int(starts[best])])
    return Jump(place, before, before + height, error, "drift", False)
