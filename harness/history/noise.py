"""Prepares a series for the search: drops stray values and estimates the noise.

The median magnitude of the differences between neighbouring windows of w values gives
the variance of a mean of w values, with autocorrelation, for every w.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
Cut = tuple[int, int, int]  # start of the level before, start of the next, its end

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
    sums = np.concatenate([[0.0], np.cumsum(_clipped(work[kept]))])
    variances, reach = variances_of(sums)
    caution = 1 + min(SCARCE / len(kept), SCARCEST)
    crowd = 1 + CROWDED * max(math.log(len(kept) / MANY), 0.0)
    return Trace(kept, work[kept], sums, variances, reach, caution, crowd)


def _clipped(values: Values) -> Values:
    """Clip the values to within `CLIP` deviations of their running median."""
    if len(values) <= 2 * HALF:  # so few that the running median would blur a step
        return values
    middle = _running_median(values)
    off = values - middle
    trimmed = np.sort(off**2)[: int(0.95 * len(off))]  # MAD is 0 on a coarse clock
    bound = CLIP * max(_deviation(np.abs(off)), math.sqrt(trimmed.mean()))
    return middle + np.clip(off, -bound, bound)


def _running_median(values: Values) -> Values:
    """Median over `HALF` runs on each side, fewer at the ends."""
    half = min(HALF, (len(values) - 1) // 2)
    windows = np.lib.stride_tricks.sliding_window_view(values, 2 * half + 1)
    medians = np.empty_like(values)
    medians[half : len(values) - half] = np.partition(windows, half, axis=1)[:, half]
    for at in range(half):
        medians[at] = np.median(values[: at + half + 1])
        medians[-1 - at] = np.median(values[-1 - at - half :])
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
    best = int(np.argmin(variances[:FURTHEST])) + 1
    reach = max(best, min(NEAREST, count // 2))
    return np.concatenate([[np.inf], variances]), reach
