"""A step as the clock wants it: its arrays, its phases, its timer, its peak memory."""

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
    """The same arrays, each beginning on a page; all backends share them."""
    cotangents = (None if a is None else page_aligned(a) for a in problem.cotangents)
    return replace(
        problem,
        inputs={name: page_aligned(array) for name, array in problem.inputs.items()},
        cotangents=list(cotangents),
    )


@dataclass(frozen=True)
class Warm:
    """A timer that has a run called, not timed, before each of its samples.

    Once, or for `least` nanoseconds: a process that slept until it was asked finds its
    core slow, too.

    In turn with others a call finds the caches as they left them, and the threads of
    its framework asleep: beside four others, and beside other jobs, log_softmax takes
    OneFlow four times what it takes it alone. That is no property of it, and would
    change in the history whenever a neighbour does.
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
    """The host's clock; a GPU's own, its L2 flushed before each call if `cold`."""
    problem = getattr(step, "problem", None)
    if problem is None or problem.device == "cpu":
        return HostTimer()
    framework = step.F  # type: ignore[attr-defined]  # only a framework's runs there
    cuda = framework.cuda
    event = partial(cuda.Event, enable_timing=True)
    return EventTimer(event, cuda.synchronize, _flusher(framework) if cold else None)


@cache
def _flusher(framework: Any) -> Callable[[], object]:
    """Overwrites more than the L2 holds; made once, not for each sample."""
    flushed = framework.zeros(FLUSHED, dtype=framework.int8, device="cuda")
    zero: Callable[[], object] = flushed.zero_
    return zero


class Phase:
    """A forward or a backward as the clock wants it: called, then waited for."""

    def __init__(self, step: Step, phase: str) -> None:
        self.run: Callable[[], None] = getattr(step, phase)
        self.wait = step.wait

    def __call__(self) -> None:
        """Run it once."""
        self.run()


def seconds_of(step: Step) -> float:
    """What one forward and backward take, waited for."""
    start = time.perf_counter()
    both(step)
    return time.perf_counter() - start


def both(step: Step) -> None:
    """One forward and one backward, each waited for."""
    step.forward()
    step.wait()
    step.backward()
    step.wait()


_STATUS = Path("/proc/self/status")


_RESET_PEAK = ("/proc/self/clear_refs", "5")  # proc(5): VmHWM becomes VmRSS


def peak_bytes(step: Step) -> int | None:
    """Bytes that a forward and backward hold at most beyond those held before.

    Whoever allocates them: the kernel counts the pages that are resident. None where
    it does not (it is Linux's), or glibc cannot give back what it keeps.
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
