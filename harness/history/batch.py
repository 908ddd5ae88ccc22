"""The process in which a commit's `impls` run, evaluated one by one or timed in turn.

`harness.history.measure` starts it, in the interpreter of a framework, with a folder
that holds request.pickle: builtin types, since NumPy differs between interpreters. What
is found is appended to answers.pickle as it comes, so that a crash costs what it was
at.
"""

from __future__ import annotations

import ctypes
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from harness.timing.interleave import interleave
from harness.timing.memory import page_aligned
from harness.timing.samples import Samples
from harness.timing.timers import EventTimer, HostTimer, Reading, Run, Timer
from harness.workers.evaluate import (
    Missing,
    evaluate,
    in_short,
    load_backend,
    problem_of,
)
from impls.contract import Problem, Step, Unsupported

Request = Mapping[str, Any]
Answer = tuple[int, str, Mapping[str, Any]]  # index of the request, backend, what came

PHASES = ("forward", "backward")

#: Rounds that a phase is given time for, in each of several processes, and the most
#: seconds that it may take: OneFlow sums a megabyte in 40 ms on a CPU.
ROUNDS = 3
LONGEST = 0.5

FLUSHED = 256 << 20  # bytes: five times the L2 of an H100 or H200 (50 MB)


def main(folder: Path) -> None:
    """Answer request.pickle in a folder."""
    asked = pickle.loads((folder / "request.pickle").read_bytes())
    handler = {"evaluate": _evaluated, "time": _timed}[asked["do"]]
    with (folder / "answers.pickle").open("wb") as answers:
        for answer in handler(asked["requests"], asked["seconds"]):
            pickle.dump(answer, answers, protocol=4)
            answers.flush()


def _evaluated(requests: Sequence[Request], seconds: float) -> Iterator[Answer]:
    """Each backend's gradients and peak memory; before each, that it is its turn."""
    for index, request in enumerate(requests):
        for backend in request["backends"]:
            yield index, backend, {"kind": "crash", "message": "the process died at it"}
            yield index, backend, _attempt({**request, "backend": backend})


def _attempt(request: Request) -> dict[str, Any]:
    try:
        found = {"kind": "result", **evaluate(request)}
    except Unsupported as reason:
        return {"kind": "unsupported", "message": str(reason)}
    except Missing as reason:
        kind = "missing" if request["device"] == "cpu" else "unsupported"
        return {"kind": kind, "message": str(reason)}
    except Exception as error:  # noqa: BLE001  # whatever an op or a framework raises
        return {"kind": "error", "message": in_short(error)}
    step = load_backend(request["backend"]).prepare(problem_of(request))
    return {**found, "peak": peak_bytes(step) if request["device"] == "cpu" else None}


def _timed(requests: Sequence[Request], seconds: float) -> Iterator[Answer]:
    """Samples of both phases of all backends of a request, taken in turn."""
    for index, request in enumerate(requests):
        problem = aligned(problem_of(request))
        steps: dict[str, Step] = {}
        first: dict[str, float] = {}
        for name in request["backends"]:
            steps[name] = load_backend(name).prepare(problem)
            first[name] = _seconds(steps[name])
        samples = {phase: _in_turn(steps, phase, seconds) for phase in PHASES}
        for name in steps:
            taken = {f: samples[f][name].seconds.tolist() for f in PHASES}
            yield index, name, {"first": first[name], **taken}


def aligned(problem: Problem) -> Problem:
    """The same arrays, each beginning on a page; all backends share them."""
    cotangents = (None if a is None else page_aligned(a) for a in problem.cotangents)
    return replace(
        problem,
        inputs={name: page_aligned(array) for name, array in problem.inputs.items()},
        cotangents=list(cotangents),
    )


def _in_turn(
    steps: Mapping[str, Step], phase: str, seconds: float
) -> dict[str, Samples]:
    runs = {name: Phase(step, phase) for name, step in steps.items()}
    once = sum(_seconds(step) for step in steps.values())
    budget = max(seconds * len(runs), min(ROUNDS * once, LONGEST))
    timer = Warm(timer_of(next(iter(steps.values()))))
    return interleave(runs, budget=budget, timer=timer)


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


def _seconds(step: Step) -> float:
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


# Memory -------------------------------------------------------------------------

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
