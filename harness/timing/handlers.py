"""The worker's part of timing: steps made ready once, then sampled when asked.

The clock runs in the main process (harness/timing/compare.py) and asks for one sample
at a time, so that implementations in several interpreters are timed in turn, call by
call. Two runs in one process are compared without asking back: `compare`.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from typing import Any

from harness.timing.interleave import compare as compare_runs
from harness.timing.samples import Comparison
from harness.timing.steps import Phase, Warm, aligned, peak_bytes, timer_of
from harness.timing.timers import HostTimer
from harness.workers.evaluate import load_backend, problem_of
from impls.contract import Step

Request = Mapping[str, Any]

AWAKE = 500_000  # nanoseconds of calls before a sample

_ready: dict[str, Step] = {}


def prepare(request: Request) -> dict[str, Any]:
    """Make the steps of some backends ready; all of them share the same arrays.

    Replies with the seconds of the first forward and backward of each, its peak memory
    in bytes (None where the kernel cannot say), and from here on the garbage collector
    is off.
    """
    release(request)
    problem = aligned(problem_of(request))
    first, peaks = {}, {}
    for key, backend in request["options"]["steps"].items():
        step = load_backend(backend).prepare(problem)
        begun = time.perf_counter()
        step.forward()
        step.wait()
        step.backward()
        step.wait()
        first[key] = time.perf_counter() - begun
        peaks[key] = _peak(step, problem.device)
        _ready[key] = step
    gc.collect()
    gc.disable()
    return {"first": first, "peak": peaks}


def sample(request: Request) -> dict[str, Any]:
    """One sample of one phase of one step: seconds a call, page faults, switches.

    After calls that are not timed: the others have had the core since the last one.
    """
    step = _ready[request["step"]]
    timer = timer_of(step, cold=request.get("cold", True))
    least = AWAKE if isinstance(timer, HostTimer) else 0  # a GPU has its own clock
    taken = Warm(timer, least)(Phase(step, request["phase"]), request["calls"])
    return {"reading": list(taken)}


def compare(request: Request) -> dict[str, Any]:
    """Two steps in turn, in this process: log-ratio, noise and medians."""
    a, b = (Phase(_ready[key], request["phase"]) for key in ("a", "b"))
    timer = timer_of(_ready["a"])
    gc.enable()  # the clock holds it itself
    return {
        "comparison": told(compare_runs(a, b, budget=request["budget"], timer=timer))
    }


def release(request: Request) -> dict[str, Any]:
    """Drop all steps, and collect garbage again."""
    _ready.clear()
    gc.enable()
    gc.collect()
    return {}


def told(found: Comparison) -> dict[str, Any]:
    """A comparison in builtin types."""
    return {
        "ratio": [found.ratio.value, found.ratio.low, found.ratio.high],
        "noise": [found.noise.value, found.noise.low, found.noise.high],
        "rounds": found.ratio.count,
        "level": found.ratio.level,
        "verdict": found.verdict,
        "medians": [found.a.median, found.b.median],
        "calls": found.a.calls,
        "faults": [found.a.faults, found.b.faults],
        "short": found.short or "",
    }


def _peak(step: Step, device: str) -> int | None:
    """On a GPU by the allocator's statistics, elsewhere by the kernel's pages."""
    if device == "cpu":
        return peak_bytes(step)
    cuda = step.F.cuda  # type: ignore[attr-defined]  # a framework's step
    if not hasattr(cuda, "reset_peak_memory_stats"):
        return None
    cuda.synchronize()
    before = cuda.memory_allocated()
    cuda.reset_peak_memory_stats()
    step.backward()
    cuda.synchronize()
    return int(cuda.max_memory_allocated() - before)
