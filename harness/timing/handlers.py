"""The worker's side of timing: prepares steps once, then takes samples on request.

The clock runs in the main process (harness/timing/compare.py) and asks for one sample
at a time, so that implementations in several interpreters are timed in turn, call by
call. Two runs in the same process are compared within the worker: `compare`.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from typing import Any

from harness.timing.interleave import compare as compare_runs
from harness.timing.interleave import interleave
from harness.timing.samples import Comparison
from harness.timing.steps import Phase, Warm, aligned, peak_bytes, seconds_of, timer_of
from harness.timing.timers import HostTimer
from harness.workers.evaluate import load_backend, problem_of
from impls.contract import Step

Request = Mapping[str, Any]

AWAKE = 500_000  # nanoseconds of calls before a sample

#: Rounds that a phase is given time for, in each of several processes, and the most
#: seconds that it may take: OneFlow sums a megabyte in 40 ms on a CPU.
ROUNDS = 3
LONGEST = 0.5

_ready: dict[str, Step] = {}


def prepare(request: Request) -> dict[str, Any]:
    """Prepare the steps of some backends; all of them share the same arrays.

    The reply has, for each, the seconds of the first forward and backward and, if the
    option "peak" is set, the peak memory in bytes (None if the kernel cannot tell). The
    garbage collector is off from now on.
    """
    release(request)
    problem = aligned(problem_of(request))
    first = {}
    for key, backend in request["options"]["steps"].items():
        _ready[key] = load_backend(backend).prepare(problem)
        first[key] = seconds_of(_ready[key])
    peaks = {}
    if request["options"].get("peak"):
        peaks = {key: _peak(step, problem.device) for key, step in _ready.items()}
    gc.collect()
    gc.disable()
    return {"first": first, "peak": peaks}


def sample(request: Request) -> dict[str, Any]:
    """One sample of one phase of one step: seconds per call, page faults, switches.

    Some calls before it are not timed, because others have used the core meanwhile.
    """
    step = _ready[request["step"]]
    timer = timer_of(step, cold=request.get("cold", True))
    least = AWAKE if isinstance(timer, HostTimer) else 0  # a GPU has its own clock
    taken = Warm(timer, least)(Phase(step, request["phase"]), request["calls"])
    return {"reading": list(taken)}


def in_turn(request: Request) -> dict[str, Any]:
    """Samples of one phase of all steps, in this process: seconds a call, by key.

    `seconds` is the budget of each step; slow ones get `ROUNDS` rounds, or `LONGEST`.
    """
    gc.enable()  # the clock holds it itself
    runs = {key: Phase(step, request["phase"]) for key, step in _ready.items()}
    once = sum(seconds_of(step) for step in _ready.values())
    budget = max(request["seconds"] * len(runs), min(ROUNDS * once, LONGEST))
    timer = Warm(timer_of(next(iter(_ready.values()))))
    taken = interleave(runs, budget=budget, timer=timer)
    return {"samples": {key: one.seconds.tolist() for key, one in taken.items()}}


def compare(request: Request) -> dict[str, Any]:
    """Two steps in turn, in this process: log-ratio, noise and medians."""
    a, b = (Phase(_ready[key], request["phase"]) for key in ("a", "b"))
    timer = timer_of(_ready["a"])
    gc.enable()  # the clock holds it itself
    return {
        "comparison": _plain(compare_runs(a, b, budget=request["budget"], timer=timer))
    }


def release(request: Request) -> dict[str, Any]:
    """Drop all steps, and switch the garbage collector on again."""
    _ready.clear()
    gc.enable()
    gc.collect()
    return {}


def _plain(comparison: Comparison) -> dict[str, Any]:
    """A comparison in builtin types."""
    return {
        "ratio": [comparison.ratio.value, comparison.ratio.low, comparison.ratio.high],
        "noise": [comparison.noise.value, comparison.noise.low, comparison.noise.high],
        "rounds": comparison.ratio.count,
        "level": comparison.ratio.level,
        "verdict": comparison.verdict,
        "medians": [comparison.a.median, comparison.b.median],
        "calls": comparison.a.calls,
        "faults": [comparison.a.faults, comparison.b.faults],
        "short": comparison.short or "",
    }


def _peak(step: Step, device: str) -> int | None:
    """Peak memory: on a GPU from the allocator's statistics, else from the kernel."""
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
