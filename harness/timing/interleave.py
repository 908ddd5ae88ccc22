"""The clock: times runs in turn, one sample of each per round, in random order.

A round is shorter than most disturbances, so these affect both sides of a pair, and not
their ratio. A sample contains only the calls and the wait for the device: the first
call and the warm-up are apart, and the garbage collector is off. Each run finds the
caches as the others left them, unlike a run alone.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import numpy as np

from gradwatch.harness.timing.samples import Samples
from gradwatch.harness.timing.timers import NANOSECOND, SHORTEST, Reading

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
