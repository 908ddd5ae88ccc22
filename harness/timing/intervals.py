"""Intervals at 95 % that assume no distribution of the noise: they use exact ranks.

Timing samples are skewed and have bursts, so neither a mean nor a standard error is
reliable. Both intervals here take two order statistics of the sorted data, at ranks
from an exact null distribution. Their coverage is at least 95 % for any distribution,
if the values are independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95  # the usual level; measured coverage must be 88 to 100 %

#: With n values the widest interval covers 1 - 2**(1 - n): 94 % at 5, 97 % at 6.
FEWEST = 6


@dataclass(frozen=True)
class Estimate:
    """A value, its interval, the number of values, and the level of the interval.

    From `FEWEST` values on, `level` is at least `LEVEL`. With fewer values the interval
    is the whole range of the data, and `level` is its lower coverage.
    """

    value: float
    low: float
    high: float
    count: int
    level: float

    @property
    def resolved(self) -> bool:
        """Whether the interval has a level of 95 %, as a verdict needs."""
        return self.level >= LEVEL

    def exp(self) -> Estimate:
        """The same estimate of a ratio, when this one is of its natural logarithm."""
        value, low, high = map(math.exp, (self.value, self.low, self.high))
        return Estimate(value, low, high, self.count, self.level)


def of_median(values: ArrayLike) -> Estimate:
    """The median of a non-empty 1-d array and its order-statistic interval.

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; Le
    Boudec, Performance Evaluation of Computer and Communication Systems, section 2.2.
    """
    ordered = np.sort(_checked(values))
    return _ranked(float(np.median(ordered)), ordered, _binomial(ordered.size))


def resampled(log_ratios: Sequence[float]) -> Estimate:
    """The ratio of B to A from one median log-ratio for each *pair of processes*.

    Each process has its own bias, so more calls in one pair of processes tell nothing
    about the next pair: a whole pair is one observation (Kalibera and Jones, Rigorous
    benchmarking in reasonable time, ISMM 2013). The value is the Hodges-Lehmann
    estimate (median of all pairwise means) with the interval of the signed-rank test.
    This is exact for symmetric differences, which the random starting order provides,
    and robust to a few outliers. Source: Hollander, Wolfe and Chicken, Nonparametric
    Statistical Methods, 3rd ed., section 3.
    """
    x = _checked(log_ratios)
    first, second = np.triu_indices(x.size)
    means = np.sort((x[first] + x[second]) / 2)
    return _ranked(float(np.median(means)), means, _signed_rank(x.size), x.size).exp()


def _checked(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError("an interval needs a non-empty 1-d array of finite numbers")
    return array


def _ranked(value: float, ordered: Floats, null: Floats, count: int = 0) -> Estimate:
    """The interval without those ranks at each end that `null` makes improbable."""
    tail = (1 - LEVEL) / 2
    cut = max(1, int(np.searchsorted(null, tail, side="right")))
    level = 1 - 2 * float(null[cut - 1])
    low, high = float(ordered[cut - 1]), float(ordered[-cut])
    return Estimate(value, low, high, count or ordered.size, level)


@lru_cache(maxsize=64)
def _binomial(n: int) -> Floats:
    """P(at most t of n values lie below the median), for t = 0 .. n."""
    logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, n + 1)))))
    return np.cumsum(np.exp(logs[n] - logs - logs[::-1] - n * math.log(2)))


@lru_cache(maxsize=64)
def _signed_rank(n: int) -> Floats:
    """P(signed-rank statistic of n values <= t) under symmetry about 0."""
    chance = np.ones(1)
    for rank in range(1, n + 1):
        gap = np.zeros(rank)
        chance = (np.concatenate((chance, gap)) + np.concatenate((gap, chance))) / 2
    return np.cumsum(chance)
