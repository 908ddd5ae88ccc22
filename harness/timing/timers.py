"""Two timers: the host's clock, and the events of a device."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

Run = Callable[[], object]
NANOSECOND = 1e-9
MILLISECOND = 1e-3

#: The shortest sample, in seconds. Reading the clock costs about 0.1 us; and the first
#: call of a sample takes up to 0.8 us longer, because other code has just run (numbers
#: were changed: 1 to 2.8 % of a call of 13 to 44 us, measured in turn with none). So a
#: sample is off by at most 1 %, and by as much on both sides of a comparison.
SHORTEST = 80e-6

#: For how long a device is kept at work before a call: so many times what the host
#: needs to queue the call, since that varies (PyTorch's backward of an op takes the
#: host 50 to 300 us, its kernels often 5), and so many seconds for each call at most.
#: What the host computes itself for longer than that is in the figure.
AHEAD, LONGEST_AHEAD = 2.0, 2e-3


class Reading(NamedTuple):
    """One sample: seconds per call, and the page faults of the process."""

    seconds: float
    faults: int = 0  # minor page faults, all calls together


@dataclass(frozen=True)
class HostTimer:
    """Wall time; `now` returns nanoseconds and never runs backwards.

    Calls that take less than `shortest` seconds are batched.
    """

    now: Callable[[], int] = time.perf_counter_ns
    shortest: float = SHORTEST

    def __call__(self, run: Run, calls: int, wait: Run = int) -> Reading:
        """Seconds per call, with the `wait`: frameworks may return before the end."""
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = self.now()
        for _ in repeat(None, calls):
            run()
            wait()
        stop = self.now()
        return _reading((stop - start) * NANOSECOND / calls, before)


@dataclass(frozen=True)
class Busy:
    """Work for a device, which overwrites its L2 cache.

    run: Queues it. gains: the seconds by which the host gets ahead of the device: what
    the device needs for it, less what the host needs to queue it.
    """

    run: Callable[[], object]
    gains: float


@dataclass(frozen=True)
class EventTimer:
    """Device time between two events around each call, with the given API.

    For CUDA under PyTorch: `event=partial(cuda.Event, enable_timing=True)`, a mark in
    the current stream's queue, and `synchronize=cuda.synchronize`. The host queues a
    call while the device is `busy`, for as long as that takes: so the figure is of the
    call's kernels. Without it a kernel of 5 us seems to take the 30 us that its launch
    takes the host (NVIDIA's nvbench keeps the device at work for the same reason). That
    also empties the L2 cache. The run's `wait` is not used: it would put the host in
    between.
    """

    event: Callable[[], Any]
    synchronize: Callable[[], object]
    busy: Busy | None = None
    now: Callable[[], int] = time.perf_counter_ns
    shortest: float = 0.0  # each call has events of its own, which cost it nothing

    def __call__(self, run: Run, calls: int, wait: Run = int) -> Reading:
        """Seconds per call by the device's clock, without what is before each."""
        ahead = self._ahead(run, 1)
        marks = [(self.event(), self.event()) for _ in range(calls)]
        before = resource.getrusage(resource.RUSAGE_SELF)
        for start, stop in marks:
            self._keep_busy(ahead)
            start.record()
            run()
            stop.record()
        self.synchronize()
        total = sum(start.elapsed_time(stop) for start, stop in marks)
        return _reading(total * MILLISECOND / calls, before)

    def outlasted(
        self, run: Run, calls: int, now: Callable[[], float]
    ) -> tuple[float, float]:
        """Seconds that the events show of calls in a row, and that work went on after.

        An event is of the current stream alone. So the host waits for the last event,
        and then, by its own clock, for all streams of the device. All calls are queued
        before the first begins, or the host would still be launching while what they
        left on another stream is already done.
        """
        ahead = self._ahead(run, calls)
        start, stop = self.event(), self.event()
        self.synchronize()
        self._keep_busy(ahead)
        start.record()
        for _ in repeat(None, calls):
            run()
        stop.record()
        stop.synchronize()
        shown = now()
        self.synchronize()
        hidden = now() - shown
        return start.elapsed_time(stop) * MILLISECOND, hidden

    def _ahead(self, run: Run, calls: int) -> int:
        """How often `busy` outlasts the host while it queues so many calls."""
        if self.busy is None:
            return 0
        self.synchronize()
        began = self.now()
        run()
        host = (self.now() - began) * NANOSECOND
        self.synchronize()
        wanted = calls * min(AHEAD * host, LONGEST_AHEAD)
        return max(1, math.ceil(wanted / self.busy.gains))

    def _keep_busy(self, times: int) -> None:
        if self.busy:
            for _ in range(times):
                self.busy.run()


Timer = HostTimer | EventTimer


def _reading(seconds: float, before: resource.struct_rusage) -> Reading:
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Reading(seconds, after.ru_minflt - before.ru_minflt)
