"""Two timers, the host's clock and a device's events; page-aligned arrays for them."""

from __future__ import annotations

import ctypes
import math
import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.contract import Backend, Problem, Step

Run = Callable[[], object]
NANOSECOND = 1e-9
MILLISECOND = 1e-3

#: The shortest sample, in seconds. Reading the clock costs about 0.1 us; and the first
#: call of a sample takes up to 0.8 us longer, because other code has just run (writing
#: numbers: 1 to 2.8 % of a call of 13 to 44 us, timed in turn with no writing). So a
#: sample is off by at most 1 %, and by as much on both sides of a comparison.
SHORTEST = 80e-6

#: The time for which a device is kept busy before a call: a multiple of the time in
#: which the host queues the call, since that varies (PyTorch's backward of an op takes
#: the host 50 to 300 us, its kernels often 5), and at most so many seconds per call. If
#: the host takes longer than that, its time is part of the figure.
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
        """Time calls, each with its `wait`, as frameworks may return before the end."""
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

    run: Queues it. gains: the seconds by which the host gets ahead of the device: the
    device's time for the work, less the host's time to queue it.
    """

    run: Callable[[], object]
    gains: float


@dataclass(frozen=True)
class EventTimer:
    """Device time between two events around each call, with the given API.

    For CUDA under PyTorch: `event=partial(cuda.Event, enable_timing=True)`, a mark in
    the current stream's queue, and `synchronize=cuda.synchronize`. The host queues a
    call while the device is `busy`, so the figure is that of the call's kernels.
    Without it a kernel of 5 us seems to take the 30 us of its launch by the host
    (NVIDIA's nvbench keeps the device busy for the same reason). That also empties the
    L2 cache. The run's `wait` is not used: it would add the host's time.
    """

    event: Callable[[], Any]
    synchronize: Callable[[], object]
    busy: Busy | None = None
    now: Callable[[], int] = time.perf_counter_ns
    shortest: float = 0.0  # each call has events of its own, which take no time of it

    def __call__(self, run: Run, calls: int, wait: Run = int) -> Reading:
        """Time calls by the device's clock, without the work that is queued before."""
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
        """Seconds of calls in a row by the events, and of work that went on after.

        An event is of the current stream alone. So the host waits for the last event,
        and then, by its own clock, for all streams of the device. All calls are queued
        before the first begins, or their work on another stream could be done while the
        host is still launching.
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
        """The number of `busy` runs that outlast the host's queueing of the calls."""
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


# Steps ----------------------------------------------------------------------------

#: The bytes overwritten to empty the L2, as a multiple of its size: the cache does not
#: strictly replace the oldest lines. Triton's do_bench overwrites 256 MB, five times
#: the 50 MB of an H100; so does this where no size is known.
TIMES_L2, FLUSHED = 5, 256 << 20
#: Times that it is overwritten to measure how long that takes. Queueing was seen to
#: take a tenth of that; a busy host takes longer, so there is a limit.
TIMED, LEAST = 4, 10

_PAGE = 4096  # bytes: the smallest page of all processors that run this

#: Variables for debugging: with the first the host waits for each kernel, with the
#: second each tensor is allocated again (CUDA C++ Programming Guide, "CUDA Environment
#: Variables"; PyTorch, "CUDA Environment Variables"). No user's call takes that long.
DEBUGGING = ("CUDA_LAUNCH_BLOCKING", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def why_not_timed(device: str) -> str:
    """The reason why times on a device would not be a user's; "" where they are."""
    if device == "cpu":
        return ""
    given = [name for name in DEBUGGING if os.environ.get(name, "0") not in ("", "0")]
    return f"{' and '.join(given)} slows a GPU down: unset it to time" if given else ""


def page_aligned(array: NDArray[Any]) -> NDArray[Any]:
    """A copy, in C order, that starts on a page boundary.

    The address of an array has more effect than most changes of an op. Two copies of
    the same input, timed in turn in one process (layer_norm backward, 256x1024, PyTorch
    2.13 on two cores), differ with a standard deviation of 3 % at NumPy's addresses,
    1.4 % if aligned to cache lines and 0.15 % if aligned to pages. With one shared copy
    it is 0.1 %.
    """
    raw = np.empty(array.nbytes + _PAGE, np.uint8)
    skip = -raw.ctypes.data % _PAGE
    placed = raw[skip : skip + array.nbytes].view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def aligned(problem: Problem) -> Problem:
    """The same problem with page-aligned arrays, which all backends share."""
    cotangents = (None if a is None else page_aligned(a) for a in problem.cotangents)
    return replace(
        problem,
        inputs={name: page_aligned(array) for name, array in problem.inputs.items()},
        cotangents=list(cotangents),
    )


def timer_of(step: Step) -> Timer:
    """The host's clock, or a GPU's events, where each call finds an empty L2 cache.

    OneFlow 0.9 has no events: there a call is timed by the host, with the wait.
    """
    problem = getattr(step, "problem", None)
    if problem is None or problem.device == "cpu":
        return HostTimer()
    framework = step.F  # type: ignore[attr-defined]  # only a framework's runs there
    cuda = framework.cuda
    if not hasattr(cuda, "Event"):
        return HostTimer()
    return replace(_events(cuda), busy=_busy(framework))


def _events(cuda: Any) -> EventTimer:
    event = partial(cuda.Event, enable_timing=True)
    return EventTimer(event, cuda.synchronize, now=time.perf_counter_ns)


@cache
def _busy(framework: Any) -> Busy:
    """The work of overwriting more than the L2 cache holds; measured only once.

    PyTorch has the cache's size from 2.5 on; that of an integrated or virtual GPU may
    be 0.
    """
    cuda = framework.cuda
    about = cuda.get_device_properties(cuda.current_device())
    count = TIMES_L2 * getattr(about, "L2_cache_size", 0) or FLUSHED
    zero = framework.zeros(count, dtype=framework.int8, device="cuda").zero_
    timer = _events(cuda)
    timer(zero, 1)  # the first call is slow
    needed = timer(zero, TIMED).seconds
    began = time.perf_counter()
    zero()
    queued = time.perf_counter() - began
    return Busy(zero, max(needed - queued, needed / LEAST))


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


def peak_bytes(backend: Backend, step: Step, problem: Problem) -> int | None:
    """Peak memory of a forward and backward, beyond that held before; None: unknown.

    On a GPU from the statistics of the allocator, of a step that holds no results yet.
    They count tensors, but no workspace that a library allocates itself. Else the
    kernel counts all resident pages; that needs Linux, and a glibc that releases the
    memory that it keeps.
    """
    if problem.device != "cpu":
        cuda = step.F.cuda  # type: ignore[attr-defined]  # a framework's step
        if not hasattr(cuda, "reset_peak_memory_stats"):
            return None
        fresh = backend.prepare(problem)
        held = cuda.memory_allocated()
        cuda.reset_peak_memory_stats()
        both(fresh)
        return int(cuda.max_memory_allocated() - held)
    try:
        trim = ctypes.CDLL(None).malloc_trim
        both(step)
        trim(0)
        # proc(5): VmHWM becomes VmRSS
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = _resident("VmRSS")
        both(step)
        return _resident("VmHWM") - before
    except (AttributeError, OSError, TypeError, KeyError):
        return None


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(dict(line.split(":", 1) for line in lines)[field].split()[0]) << 10
