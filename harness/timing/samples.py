"""The clock, timing samples, comparisons of two, and intervals at 95 % by exact ranks.

The clock takes a sample of each run per round, in random order. A round is shorter than
most disturbances, so these affect both sides of a pair, and not their ratio. A sample
has only the calls and the wait for the device: the first call and the warm-up are
apart. Each run finds the caches as the others left them, unlike a run alone.

Timing samples are skewed and have bursts, so neither a mean nor a standard error is
reliable. Both intervals take two order statistics of the sorted data, at ranks from an
exact null distribution. Their coverage is at least 95 % for any distribution, if the
values are independent.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradwatch.harness.timing.timers import NANOSECOND, SHORTEST, Reading

Floats = NDArray[np.float64]
T = TypeVar("T")
Verdict = Literal["faster", "slower", "no difference", "not resolved"]

#: Two runs show no difference if the whole interval of their ratio is within this: 95 %
#: of comparisons of a run with itself are within 0.3 % (docs/timing.md), and an
#: interval extends another 0.2 % on either side.
SAME = 0.005

#: The limit above which a figure is doubtful. At 256 page faults per MB and call all
#: pages are new, below 1 hardly any is.
FAULTS_PER_MEGABYTE = 1.0

#: The most samples of a phase that are recorded: with 200, the 99 % interval of the
#: median covers a tenth of the ranks on either side.
KEPT = 200


def few(samples: Sequence[T], count: int = KEPT) -> list[T]:
    """Return at most `count` of some samples, evenly spread."""
    places = np.linspace(0, len(samples) - 1, min(count, len(samples)))
    return [samples[place] for place in places.round().astype(int)]


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
    """The median of some finite numbers and its order-statistic interval.

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2; Le
    Boudec, Performance Evaluation of Computer and Communication Systems, section 2.2.
    """
    ordered = np.sort(values)
    return _ranked(float(np.median(ordered)), ordered, _binomial(ordered.size))


def resampled(log_ratios: Sequence[float]) -> Estimate:
    """The ratio of B to A from one median log-ratio for each *pair of processes*.

    Each process has its own bias, so more calls in one pair of processes say nothing
    about the next pair: a whole pair is one observation (Kalibera and Jones, Rigorous
    benchmarking in reasonable time, ISMM 2013). The value is the Hodges-Lehmann
    estimate (median of all pairwise means) with the interval of the signed-rank test.
    This is exact for symmetric differences, which the random starting order provides,
    and robust to a few outliers. Source: Hollander, Wolfe and Chicken, Nonparametric
    Statistical Methods, 3rd ed., section 3.
    """
    x = np.asarray(log_ratios)
    first, second = np.triu_indices(x.size)
    means = np.sort((x[first] + x[second]) / 2)
    return _ranked(float(np.median(means)), means, _signed_rank(x.size), x.size).exp()


def _ranked(value: float, ordered: Floats, null: Floats, count: int = 0) -> Estimate:
    """The estimate whose interval excludes the ranks that `null` makes improbable."""
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


# Samples ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of one run.

    `seconds` holds one value per sample, in the order taken: the mean of its `calls`.
    `faults` are minor page faults per call.
    """

    seconds: Floats
    calls: int
    faults: float

    def __post_init__(self) -> None:
        seconds = np.array(self.seconds, dtype=np.float64)
        if seconds.ndim != 1 or not seconds.size:
            raise ValueError("samples are a non-empty 1-d array of seconds")
        bad = ~(np.isfinite(seconds) & (seconds > 0))
        if bad.any():
            where = int(bad.argmax())
            raise ValueError(
                f"sample {where} is {seconds[where]} s, not a positive, finite time: "
                "the timer is broken or too coarse"
            )
        seconds.flags.writeable = False
        object.__setattr__(self, "seconds", seconds)

    @cached_property
    def interval(self) -> Estimate:
        """The median in seconds and its 95 % interval.

        The interval is for this process under these conditions. Other processes have
        other medians; to cover these, compare several processes.
        """
        return of_median(self.seconds)

    @property
    def median(self) -> float:
        """The median of the samples, in seconds per call."""
        return self.interval.value

    @property
    def short(self) -> str:
        """The reason why the budget was too short, or ""."""
        count = len(self.seconds)
        why = f"an interval needs {FEWEST} samples, there was time for {count}"
        return why if count < FEWEST else ""

    def doubts(self, moved: int = 0) -> tuple[str, ...]:
        """Reasons to doubt the figure; `moved` is the bytes that a call touches."""
        faults = FAULTS_PER_MEGABYTE * max(1.0, moved / 1e6)
        reasons = (
            (self.faults > faults, f"{self.faults:.0f} page faults per call"),
            (self.short != "", f"budget too short: {self.short}"),
        )
        return tuple(line for holds, line in reasons if holds)


@dataclass(frozen=True, eq=False)
class Comparison:
    """B compared with A: `ratio` is the time of B over that of A; above 1 is slower.

    `noise` has the same figure for each side compared with itself in the same rounds,
    which should be 1.
    """

    a: Samples
    b: Samples
    ratio: Estimate
    noise: Estimate

    @property
    def short(self) -> str:
        """The reason why the budget was too short for either side, or ""."""
        return self.a.short or self.b.short


def paired(a: Samples, b: Samples) -> Comparison:
    """Compare two runs that were timed in turn, a pair of samples from each round.

    The ratio is the median of b / a over the rounds, computed with logarithms so that
    exchanging the sides inverts it. For the noise, each side is paired with itself, one
    round with the next, alternating in direction so that a steady drift cancels. There
    are as many of these pairs, but they are further apart in time, so the noise
    estimate is conservative.
    """
    ratio = of_median(np.log(b.seconds) - np.log(a.seconds)).exp()
    noise = of_median(np.concatenate([_against_itself(a), _against_itself(b)])).exp()
    return Comparison(a, b, ratio, noise)


def verdict_on(
    ratio: Estimate, noise: Estimate | None, *, same: float = SAME
) -> Verdict:
    """The verdict on B, from its ratio to A and from the noise, if known.

    - "no difference": the whole interval lies within a factor 1 + `same` of 1;
    - "slower" or "faster": the interval excludes 1, and the ratio is further from 1
      than that factor and than any end of the noise's interval;
    - "not resolved": neither, or there are too few pairs for an interval.
    """
    if not ratio.resolved:
        return "not resolved"
    if max(ratio.high, 1 / ratio.low) <= 1 + same:
        return "no difference"
    reach = max(1 + same, noise.high, 1 / noise.low) if noise else 1 + same
    if ratio.low > 1 and ratio.value > reach:
        return "slower"
    if ratio.high < 1 and 1 / ratio.value > reach:
        return "faster"
    return "not resolved"


def _against_itself(samples: Samples) -> Floats:
    """Log-ratios of neighbouring samples; a single sample gives 0."""
    logs = np.log(samples.seconds)
    steps = np.diff(logs)[::2]
    steps[1::2] *= -1
    return steps if steps.size else np.zeros(1)


WARM_UP = 0.1  # share of the budget: the rest is for the samples

#: Seconds from which a sample needs no batch beside a batched one: reading the timer
#: takes 0.01 % of it, so both sides need not divide that by the same number of calls.
LONG = 1e-3

_MOST_CALLS = 1 << 16  # so many of an empty function take 1 ms
_YOUNG = 700  # objects: CPython's own threshold for a collection, up to 3.12

Now = Callable[[], int]  # nanoseconds
Run = Callable[[int], Reading]  # takes a sample of so many calls
Key = TypeVar("Key", bound=Hashable)  # of a run and its samples


def interleave(
    runs: Mapping[Key, Run],
    *,
    budget: float,
    shortest: float = SHORTEST,
    now: Now = time.perf_counter_ns,
    seed: int = 0,
) -> dict[Key, Samples]:
    """Time runs in turn, in random order, for `budget` seconds in all; see `paired`.

    All runs use the same number of calls per sample: the smallest power of two for
    which a sample of the fastest run takes `shortest` seconds. A much slower run,
    which reaches `LONG` with fewer calls, uses those. The budget includes the warm-up.
    No round starts if it would exceed the budget by taking as long as the longest one.
    The first call and one sample of each are always made; `Samples.short` says whether
    the budget was too small.
    """
    if not runs:
        raise ValueError("nothing to time")
    if not 0 < budget < math.inf:
        raise ValueError(f"a budget is a positive number of seconds, not {budget}")
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        begun = now()
        deadline = begun + round(budget / NANOSECOND)
        calls = _warmed(runs, shortest, now, deadline)
        _onwards(now, begun)
        order, names = random.Random(seed), list(runs)
        taken: dict[Key, list[Reading]] = {name: [] for name in names}
        longest, at = 0, now()
        while not longest or at + longest <= deadline:  # as long as a round fits
            order.shuffle(names)
            for name in names:
                taken[name].append(runs[name](calls[name]))
            if gc.get_count()[0] > _YOUNG:  # cycles can keep big arrays alive
                gc.collect(1)
            longest = max(longest, _onwards(now, at), 1)
            at = now()
    finally:
        if was_on:
            gc.enable()
    found = dict[Key, Samples]()
    for name, readings in taken.items():
        seconds, faults = map(np.array, zip(*readings, strict=True))
        each = float(faults.mean()) / calls[name]
        found[name] = Samples(seconds, calls[name], each)
    return found


def _warmed(
    runs: Mapping[Key, Run], shortest: float, now: Now, deadline: int
) -> dict[Key, int]:
    """Make first calls and warm up; return the calls for a sample of each run."""
    first = {name: run(1).seconds for name, run in runs.items()}
    for name, took in first.items():
        if not 0 < took < math.inf:
            raise ValueError(
                f"the first call of {name!r} took {took} s, which is impossible"
            )
    share = round(WARM_UP * max(0, deadline - now()) / len(runs))
    latest, least = dict(first), dict.fromkeys(runs, 1)
    for name, run in runs.items():  # double the batch until it is long enough
        until = now() + share
        while now() < until:
            latest[name] = run(least[name]).seconds
            if latest[name] * least[name] < shortest and least[name] < _MOST_CALLS:
                least[name] *= 2
    common = max(least.values())
    return {  # fewer if these take `LONG`
        name: max(least[name], min(common, math.ceil(LONG / latest[name])))
        for name in runs
    }


def _onwards(now: Now, begun: int) -> int:
    """Nanoseconds since `begun`; ValueError for a clock that runs backwards."""
    passed = now() - begun
    if passed < 0:
        raise ValueError(f"the clock runs backwards: by {-passed * NANOSECOND:.3g} s")
    return passed
