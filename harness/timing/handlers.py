"""The worker's side of timing: prepares steps once, then takes samples on request.

The main process (harness/timing/compare.py) asks for one sample at a time, so that
implementations in several interpreters are timed in turn. Inputs change between calls,
and results are kept for the main process to judge: `kept`.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gradwatch.harness.timing import timers
from gradwatch.harness.timing.rotation import (
    PHASES,
    Place,
    Rotation,
    watched,
    witnessed,
)
from gradwatch.harness.timing.samples import interleave
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.evaluate import load_backend, problem_of

Request = Mapping[str, Any]

AWAKE = 500_000  # nanoseconds of calls before a sample

#: Rounds that a slow phase gets in each of several processes, and the most seconds for
#: them: OneFlow sums a megabyte in 40 ms on a CPU.
ROUNDS = 3
LONGEST = 0.5

#: Seconds for which a GPU may seem busy after the last event: the wait for an idle GPU
#: takes some 10 us, and longer on a busy host. More is work on another stream. One call
#: is examined, and as many in a row as show `LONG_BESIDE` times that, at most
#: `IN_A_ROW`, since a device's queue holds about a thousand kernels: the work that each
#: call hides on the same other stream adds up.
BESIDE, LONG_BESIDE, IN_A_ROW = 1e-4, 20, 64

_ready: dict[str, Rotation] = {}


def prepare(request: Request) -> dict[str, Any]:
    """Prepare the steps of some backends; all of them share the same arrays.

    The reply has, for each, the seconds of the first forward and backward and, if the
    option "peak" is set, the peak memory in bytes (None if the kernel cannot tell). The
    garbage collector is off from now on.
    """
    release(request)
    options = request["options"]
    if why := timers.why_not_timed(problem_of(request).device):
        raise RuntimeError(why)
    backends = {key: load_backend(name) for key, name in options["steps"].items()}
    # At least one more source, so that the inputs can change.
    sources = [problem_of(one) for one in (request, *options.get("others", [request]))]
    places = [Place(sources), Place(sources)]
    first, peaks = {}, {}
    for key, backend in backends.items():
        step = backend.prepare(places[0].problem)
        first[key] = timers.seconds_of(step)
        if options.get("peak"):
            peaks[key] = timers.peak_bytes(backend, step, places[0].problem)
        _ready[key] = Rotation(backend, places, sources, options.get("seed", 0))
    gc.collect()
    gc.disable()
    return {"first": first, "peak": peaks}


def sample(request: Request) -> dict[str, Any]:
    """Take a sample of a phase of a step: seconds per call, and page faults.

    Some calls before it are not timed, because others have used the core meanwhile.
    """
    rotation = _ready[request["step"]]
    timer = timers.timer_of(rotation.steps[0])
    least = AWAKE if isinstance(timer, timers.HostTimer) else 0  # a GPU has a clock
    asked = request["phase"], timer, request["calls"]
    return {"reading": list(witnessed(rotation, *asked, least=least))}


def in_turn(request: Request) -> dict[str, Any]:
    """Time a phase of all steps in turn in this process: seconds per call, by key.

    `seconds` is the budget of each step; slow ones get `ROUNDS` rounds, or `LONGEST`.
    """
    gc.enable()  # `interleave` disables it itself
    once = sum(timers.seconds_of(one.steps[0]) for one in _ready.values())
    budget = max(request["seconds"] * len(_ready), min(ROUNDS * once, LONGEST))
    timer = timers.timer_of(next(iter(_ready.values())).steps[0])
    runs = {
        key: partial(witnessed, rotation, request["phase"], timer)
        for key, rotation in _ready.items()
    }
    taken = interleave(runs, budget=budget, shortest=timer.shortest, now=timer.now)
    return {"samples": {key: one.seconds.tolist() for key, one in taken.items()}}


def kept(request: Request) -> dict[str, Any]:
    """Return results of timed calls of a step, and the reasons against its times.

    `results` holds by phase the kept results, packed; `against` a line for each reason.
    A change by a page to this process counts against all steps.
    """
    return evidence(_ready[request["step"]])


def evidence(rotation: Rotation) -> dict[str, Any]:
    """Return the evidence of one rotation; also for timing in this process."""
    changes = integrity.changes(rotation.backend.framework)
    against = [*changes, *rotation.against()]
    phases = [phase for phase in PHASES if rotation.timed[phase] and not against]
    results = {phase: rotation.results(phase) for phase in phases}
    return {"results": results, "against": against}


def draw(request: Request) -> dict[str, Any]:
    """Draw unseen numbers for calls to come; time nothing.

    The reply says whether each call will get others, and which share of a GPU's work
    its events enclose: infinity where the host's clock is read.
    """
    rotation, phase = _ready[request["step"]], request["phase"]
    rotation.draw(phase, request["picks"])
    timer, shown = timers.timer_of(rotation.steps[0]), math.inf
    if isinstance(timer, timers.EventTimer):
        run = getattr(rotation.step(phase), phase)
        seconds = timer(run, request["calls"]).seconds
        shown = _shown_by_events(timer, run, seconds, time.perf_counter)
    return {"in_place": rotation.in_place, "shown": shown}


def call(request: Request) -> dict[str, Any]:
    """Call a phase on drawn numbers, for the main process to time."""
    rotation, only_write = _ready[request["step"]], request["only_write"]
    with contextlib.nullcontext() if only_write else watched(rotation):
        rotation.call(request["phase"], request["calls"], only_write=only_write)
    return {}


def computed(request: Request) -> dict[str, Any]:
    """Return the results of the last of those calls."""
    rotation = _ready[request["step"]]
    return {**rotation.computed(request["phase"]), "against": rotation.against()}


def _shown_by_events(
    timer: timers.EventTimer, run: timers.Run, seconds: float, now: Callable[[], float]
) -> float:
    """The share of the device's work that its events enclose: for one call or many."""
    long = LONG_BESIDE * BESIDE
    many = math.ceil(long / max(seconds, long / IN_A_ROW))
    shares = [1.0]
    for calls in (1, many):  # the streams of several calls run in parallel
        visible, hidden = timer.outlasted(run, calls, now)
        if hidden > BESIDE:
            shares.append(visible / (visible + hidden))
    return min(shares)


def release(request: Request) -> dict[str, Any]:
    """Drop all steps, and switch the garbage collector on again."""
    _ready.clear()
    gc.enable()
    gc.collect()
    return {}
