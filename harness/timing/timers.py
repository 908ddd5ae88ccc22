"""Two timers: the host's clock, and the events of a device.

A run is any callable. If it has a `wait` method, the timer calls it after every call,
inside the timed interval: asynchronous frameworks return before they have computed.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple, Protocol

Run = Callable[[], object]
NANOSECOND = 1e-9
MILLISECOND = 1e-3

#: The shortest sample, in seconds. Reading the clock costs about 0.1 us; and the first
#: call of a sample takes up to 0.8 us longer, because other code has just run (numbers
#: were changed: 1 to 2.8 % of a call of 13 to 44 us, measured in turn with none). So a
#: sample is off by at most 1 %, and by as much on both sides of a comparison.
SHORTEST = 80e-6


class Reading(NamedTuple):
    """One sample: seconds per call, and the kernel's counters for the process."""

    seconds: float
    faults: int = 0  # minor page faults, all calls together
    switches: int = 0  # involuntary context switches, likewise


class Timer(Protocol):
    """Times calls of a run, with the wait for the device, in seconds per call."""

    @property
    def now(self) -> Callable[[], int]:
        """The host's clock in nanoseconds, used for the budget."""

    def __call__(self, run: Run, calls: int) -> Reading:
        """Call `run` `calls` times and return the time per call."""


@dataclass(frozen=True)
class HostTimer:
    """Wall time; `now` returns nanoseconds and never runs backwards."""

    now: Callable[[], int] = time.perf_counter_ns

    def __call__(self, run: Run, calls: int) -> Reading:
        """Seconds per call; each call includes the wait, if `run` has a `wait`."""
        wait = getattr(run, "wait", None)
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = self.now()
        if wait is None:
            for _ in repeat(None, calls):
                run()
        else:
            for _ in repeat(None, calls):
                run()
                wait()
        stop = self.now()
        return _reading((stop - start) * NANOSECOND / calls, before)


class Event(Protocol):
    """A mark in a device's queue, like CUDA's: `elapsed_time` is in milliseconds."""

    def record(self) -> object:
        """Put the mark at the end of the current stream's queue."""

    def synchronize(self) -> object:
        """Wait until the stream has come to the mark."""

    def elapsed_time(self, end: Event, /) -> float:
        """Milliseconds from this mark to `end`, both of them past."""


@dataclass(frozen=True)
class EventTimer:
    """Device time between two events around each call, with the given API.

    For CUDA under PyTorch: `event=partial(cuda.Event, enable_timing=True)` and
    `synchronize=cuda.synchronize`. `flush` is called before each call, outside its
    events, and overwrites the L2 cache: give it for cold figures, leave it out for warm
    ones. A flush also keeps the device busy while the host enqueues the call; without
    it, the figure of a short kernel includes the launch latency (as in Triton's
    do_bench). A run's own `wait` is not used: it would put the host between the events.
    """

    event: Callable[[], Event]
    synchronize: Callable[[], object]
    flush: Callable[[], object] | None = None
    now: Callable[[], int] = time.perf_counter_ns

    def __call__(self, run: Run, calls: int) -> Reading:
        """Seconds per call by the device's clock, without the flushes."""
        marks = [(self.event(), self.event()) for _ in range(calls)]
        before = resource.getrusage(resource.RUSAGE_SELF)
        for start, stop in marks:
            if self.flush is not None:
                self.flush()
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
        and then, by its own clock, for all streams of the device.
        """
        start, stop = self.event(), self.event()
        self.synchronize()
        start.record()
        for _ in repeat(None, calls):
            run()
        stop.record()
        stop.synchronize()
        shown = now()
        self.synchronize()
        hidden = now() - shown
        return start.elapsed_time(stop) * MILLISECOND, hidden


def _reading(seconds: float, before: resource.struct_rusage) -> Reading:
    after = resource.getrusage(resource.RUSAGE_SELF)
    faults = after.ru_minflt - before.ru_minflt
    return Reading(seconds, faults, after.ru_nivcsw - before.ru_nivcsw)
