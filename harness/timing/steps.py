"""Prepares a step for the clock: arrays, phases, timer, peak memory."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from harness.timing.memory import page_aligned
from harness.timing.timers import EventTimer, HostTimer, Reading, Run, Timer
from impls.contract import Problem, Step

FLUSHED = 256 << 20  # bytes: five times the L2 of an H100 or H200 (50 MB)


def aligned(problem: Problem) -> Problem:
    """The same problem with page-aligned arrays, which all backends share."""
    cotangents = (None if a is None else page_aligned(a) for a in problem.cotangents)
    return replace(
        problem,
        inputs={name: page_aligned(array) for name, array in problem.inputs.items()},
        cotangents=list(cotangents),
    )


@dataclass(frozen=True)
class Warm:
    """A timer that calls a run without timing it before each of its samples.

    It calls once, or for `least` nanoseconds, because a freshly woken process runs on a
    slowed-down core.

    When runs are timed in turn, a call finds the caches as the others left them, and
    the threads of its framework asleep. In turn with four others, and next to other
    jobs, log_softmax takes OneFlow four times as long as alone. That is no property of
    log_softmax, and in the history it would change whenever another op changes.
    """

    timer: Timer
    least: int = 0

    @property
    def now(self) -> Callable[[], int]:
        """The host's nanoseconds."""
        return self.timer.now

    def __call__(self, run: Run, calls: int) -> Reading:
        """Call and wait until it is warm, then take the sample."""
        wait = getattr(run, "wait", bool)
        run()
        wait()
        begun = self.now() if self.least else 0
        while self.least and self.now() - begun < self.least:
            run()
            wait()
        return self.timer(run, calls)


def timer_of(step: Step, *, cold: bool = True) -> Timer:
    """The host's clock, or a GPU's; if `cold`, the L2 is flushed before each call."""
    problem = getattr(step, "problem", None)
    if problem is None or problem.device == "cpu":
        return HostTimer()
    framework = step.F  # type: ignore[attr-defined]  # only a framework's runs there
    cuda = framework.cuda
    event = partial(cuda.Event, enable_timing=True)
    return EventTimer(event, cuda.synchronize, _flusher(framework) if cold else None)


@cache
def _flusher(framework: Any) -> Callable[[], object]:
    """A function that overwrites more than the L2 cache holds; made only once."""
    flushed = framework.zeros(FLUSHED, dtype=framework.int8, device="cuda")
    zero: Callable[[], object] = flushed.zero_
    return zero


class Phase:
    """A forward or a backward that the clock can call and wait for."""

    def __init__(self, step: Step, phase: str) -> None:
        self.run: Callable[[], None] = getattr(step, phase)
        self.wait = step.wait

    def __call__(self) -> None:
        """Run it once."""
        self.run()


def seconds_of(step: Step) -> float:
    """Seconds of one forward and backward, with the wait."""
    start = time.perf_counter()
    both(step)
    return time.perf_counter() - start


def both(step: Step) -> None:
    """Run one forward and one backward, and wait for each."""
    step.forward()
    step.wait()
    step.backward()
    step.wait()


_STATUS = Path("/proc/self/status")


_RESET_PEAK = ("/proc/self/clear_refs", "5")  # proc(5): VmHWM becomes VmRSS


def peak_bytes(step: Step) -> int | None:
    """The peak memory of a forward and backward, beyond the memory held before.

    The kernel counts resident pages, whoever allocates them. None if this is not Linux,
    or if glibc cannot release the memory that it keeps.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
        both(step)
        trim(0)
        Path(_RESET_PEAK[0]).write_text(_RESET_PEAK[1], encoding="ascii")
        before = _resident("VmRSS")
        both(step)
        return _resident("VmHWM") - before
    except (AttributeError, OSError, TypeError, KeyError):
        return None


def _resident(field: str) -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) << 10
