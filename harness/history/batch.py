"""The process in which a commit's `impls` run, evaluated one by one or timed in turn.

`harness.history.measure` starts it, in the interpreter of a framework, with a folder
that holds request.pickle: builtin types, since NumPy differs between interpreters. What
is found is appended to answers.pickle as it comes, so that a crash costs what it was
at.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.timing.interleave import interleave
from harness.timing.samples import Samples
from harness.timing.steps import Phase, Warm, aligned, peak_bytes, seconds_of, timer_of
from harness.workers.evaluate import (
    Missing,
    evaluate,
    in_short,
    load_backend,
    problem_of,
)
from impls.contract import Step, Unsupported

Request = Mapping[str, Any]
Answer = tuple[int, str, Mapping[str, Any]]  # index of the request, backend, what came

PHASES = ("forward", "backward")

#: Rounds that a phase is given time for, in each of several processes, and the most
#: seconds that it may take: OneFlow sums a megabyte in 40 ms on a CPU.
ROUNDS = 3
LONGEST = 0.5


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
            first[name] = seconds_of(steps[name])
        samples = {phase: _in_turn(steps, phase, seconds) for phase in PHASES}
        for name in steps:
            taken = {f: samples[f][name].seconds.tolist() for f in PHASES}
            yield index, name, {"first": first[name], **taken}


def _in_turn(
    steps: Mapping[str, Step], phase: str, seconds: float
) -> dict[str, Samples]:
    runs = {name: Phase(step, phase) for name, step in steps.items()}
    once = sum(seconds_of(step) for step in steps.values())
    budget = max(seconds * len(runs), min(ROUNDS * once, LONGEST))
    timer = Warm(timer_of(next(iter(steps.values()))))
    return interleave(runs, budget=budget, timer=timer)
