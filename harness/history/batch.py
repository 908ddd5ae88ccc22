"""The process that runs a commit's `impls`: evaluates them one by one, or times them.

`harness.history.measure` starts it in the interpreter of a framework, with a folder
that contains request.pickle (builtin types only, since NumPy versions differ). Each
answer is appended to answers.pickle at once, so a crash loses only the current one.
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
Answer = tuple[int, str, Mapping[str, Any]]  # index of the request, backend, reply

PHASES = ("forward", "backward")

#: The budget of a phase allows for this many rounds in each process, up to this many
#: seconds: OneFlow sums a megabyte in 40 ms on a CPU.
ROUNDS = 3
LONGEST = 0.5


def main(folder: Path) -> None:
    """Answer the requests in request.pickle of a folder."""
    asked = pickle.loads((folder / "request.pickle").read_bytes())
    handler = {"evaluate": _evaluated, "time": _timed}[asked["do"]]
    with (folder / "answers.pickle").open("wb") as answers:
        for answer in handler(asked["requests"], asked["seconds"]):
            pickle.dump(answer, answers, protocol=4)
            answers.flush()


def _evaluated(requests: Sequence[Request], seconds: float) -> Iterator[Answer]:
    """Gradients and peak memory of each backend; a "crash" is written before each."""
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
