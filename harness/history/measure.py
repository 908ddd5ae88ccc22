"""Measures a commit for asv's benchmarks: judges each gradient, times what agrees.

Clock, judge, inputs and sizes come from the working tree. Only the `impls` of the
checked-out commit are measured, in their own processes, so a step in the history is a
step of the implementations. One process times everything in turn; several processes do
this one after the other, because each has its own bias.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from harness.judging.cases import Trial
from harness.judging.reference import Reference, reference
from harness.judging.verdict import Judgement
from harness.project.imports import START, place
from harness.project.paths import ROOT
from harness.workers.allocator import MALLOC_ENVIRONMENT
from harness.workers.evaluate import problem_of
from harness.workers.fitness import judge_outcome, why_unfit
from harness.workers.messages import Outcome, Task
from impls.catalogue import framework_of

#: Number of samples kept of each phase, evenly spread: with 200, the 99 % interval of
#: the median covers a tenth of the ranks on either side.
KEPT = 200

#: Bytes; less resident memory cannot be measured: it is counted in pages of 4 KiB, and
#: the interpreter's own objects come and go.
SEEN = 16 << 12

#: The measured peak must be at least this share of the results; some pages are reused.
ALMOST = 0.9

#: Seconds after which a process counts as hanging; the longest needs a tenth of it.
PATIENCE = 3600

_BATCH = f"{__package__}.batch"

_START = f"""
import json, sys
from pathlib import Path
place = json.loads(sys.argv[1])
{START}
from {_BATCH} import main
main(Path(sys.argv[2]))
"""


class NotMeasured(Exception):
    """The measuring process failed as a whole; the message says how."""


@dataclass
class Figures:
    """The figures of one backend at one point; `why` explains missing ones.

    `forward` and `backward` are samples in seconds; `first` is the time of the first
    forward and backward together, with the wait; `peak` is in bytes; `ratio` is the
    worst ratio of the judge.
    """

    why: str = ""
    ratio: float | None = None
    first: float | None = None
    peak: int | None = None
    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Point:
    """Where an implementation is measured; its fields are asv's parameters."""

    op: str
    size: str
    dtype: str
    device: str
    backend: str


@dataclass(frozen=True)
class Stand:
    """What is measured: the implementations of a checkout, on some frameworks.

    `complete` says that this interpreter must have all of these frameworks.
    """

    measured: Path
    frameworks: Sequence[str]
    complete: bool = True

    @classmethod
    def here(cls) -> Stand:
        """The target that asv's environment describes, or else the working tree."""
        named = os.environ.get("ASV_FRAMEWORKS")
        build = os.environ.get("ASV_BUILD_DIR")
        frameworks = named.split() if named else ["numpy", "torch", "oneflow"]
        return cls(Path(build) if build else ROOT, frameworks, named is not None)

    def runs(self, backend: str) -> bool:
        """Whether a backend's framework is one of them."""
        return framework_of(backend) in self.frameworks


def measure(
    trials: Iterable[Trial],
    backends: Sequence[str],
    devices: Sequence[str],
    stand: Stand,
    *,
    processes: int,
    seconds: float,
) -> dict[Point, Figures]:
    """Judge every trial on every backend and device; time those that agree.

    Args:
        trials: What to run.
        backends: Names of backends; those of other frameworks are passed over.
        devices: "cpu", "cuda".
        stand: Whose implementations.
        processes: In how many processes, one after the other, they are timed; 0 only
            judges.
        seconds: For each phase of each backend in each process.

    Raises:
        NotMeasured: The interpreter, a framework or the commit's `impls` do not start.
    """
    present = [device for device in devices if device == "cpu" or has_cuda()]
    wanted = [name for name in backends if stand.runs(name)]
    requests = [
        {**Task.of(trial, "", device).payload(), "size": trial.case, "backends": wanted}
        for trial in trials
        for device in present
    ]
    found = dict(_judged(requests, stand))
    for turn in range(processes):
        _add_times(found, _agreeing(requests, found, turn), stand, seconds)
    for figures in found.values():
        _keep_few(figures)
    return found


def has_cuda() -> bool:
    """Whether this machine has a CUDA driver, found without starting it."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def _point(request: Mapping[str, Any], backend: str) -> Point:
    place = {name: request[name] for name in ("op", "size", "dtype", "device")}
    return Point(**place, backend=backend)


# Judging ------------------------------------------------------------------------


def _judged(
    requests: Sequence[Mapping[str, Any]], stand: Stand
) -> Iterator[tuple[Point, Figures]]:
    replies = _evaluate_all(requests, stand)
    for index, request in enumerate(requests):
        right: Reference | None = None
        for backend in request["backends"]:
            reply = replies[index, backend]
            if reply["kind"] != "result":
                yield _point(request, backend), Figures(why=reply["message"])
                continue
            right = right or reference(problem_of(request))
            yield _point(request, backend), _figures(right, request, reply)


def _figures(
    right: Reference, request: Mapping[str, Any], reply: Mapping[str, Any]
) -> Figures:
    task = Task("", request["op"], "", problem_of(request))
    outcome = Outcome.of(task, {"seconds": 0.0, **reply}, "")
    assert outcome.result is not None
    result = outcome.result
    judgements = list(judge_outcome(outcome, right))
    return Figures(
        why=why_unfit((j.verdict, j.message) for j in judgements),
        ratio=_worst(j for j in judgements if j.tensor in result.gradients),
        peak=_seen(reply["peak"], outcome),
    )


def _worst(judgements: Iterable[Judgement]) -> float | None:
    """The largest ratio; None if one is not a number."""
    ratios = [j.ratio for j in judgements]
    return max(ratios) if ratios and np.isfinite(ratios).all() else None


def _seen(peak: int | None, outcome: Outcome) -> int | None:
    """The peak; None if it is smaller than the results: an allocator hides it then.

    A gradient that is the cotangent itself takes no memory.
    """
    assert outcome.result is not None
    given = [a for a in outcome.task.problem.cotangents if a is not None]
    made = [*outcome.result.outputs.values()]
    for gradient in outcome.result.gradients.values():
        if gradient is not None and not any(np.array_equal(gradient, g) for g in given):
            made.append(gradient)
    least = sum(array.nbytes for array in made)
    if peak is None or least < SEEN or peak < ALMOST * least:
        return None
    return peak


def _evaluate_all(
    requests: Sequence[Mapping[str, Any]], stand: Stand
) -> dict[tuple[int, str], Mapping[str, Any]]:
    """Every backend's answer to every request; a backend that crashes is left out."""
    replies: dict[tuple[int, str], Mapping[str, Any]] = {}
    while left := _unanswered(requests, replies):
        numbers = list(left)
        answers, failure = _run("evaluate", list(left.values()), stand, 0.0)
        if not answers:
            raise NotMeasured(failure)
        for at, backend, reply in answers:
            if reply["kind"] == "missing" and stand.complete:
                raise NotMeasured(f"{backend}: {reply['message']}")
            replies[numbers[at], backend] = reply
    return replies


def _unanswered(
    requests: Sequence[Mapping[str, Any]],
    replies: Mapping[tuple[int, str], Any],
) -> dict[int, dict[str, Any]]:
    left = {}
    for index, request in enumerate(requests):
        names = [b for b in request["backends"] if (index, b) not in replies]
        if names:
            left[index] = {**request, "backends": names}
    return left


# Timing -------------------------------------------------------------------------


def _agreeing(
    requests: Sequence[Mapping[str, Any]], found: Mapping[Point, Figures], turn: int
) -> list[dict[str, Any]]:
    """What agrees, rotated for each process, because the first op is slower."""
    right = []
    for request in requests:
        names = [b for b in request["backends"] if not found[_point(request, b)].why]
        if names:
            right.append({**request, "backends": names})
    shift = turn * len(right) // 3
    return right[shift:] + right[:shift]


def _add_times(
    found: dict[Point, Figures],
    requests: Sequence[Mapping[str, Any]],
    stand: Stand,
    seconds: float,
) -> None:
    if not requests:
        return
    answers, failure = _run("time", requests, stand, seconds)
    if failure:
        raise NotMeasured(f"while timing: {failure}")
    for index, backend, reply in answers:
        figures = found[_point(requests[index], backend)]
        figures.forward += reply["forward"]
        figures.backward += reply["backward"]
        figures.first = min(reply["first"], figures.first or reply["first"])


def _keep_few(figures: Figures) -> None:
    """Thin both phases to the same number of samples, evenly spread."""
    count = min(KEPT, len(figures.forward), len(figures.backward))
    for phase in ("forward", "backward"):
        samples = getattr(figures, phase)
        places = np.linspace(0, len(samples) - 1, count).round().astype(int)
        setattr(figures, phase, [samples[place] for place in places])


# The process --------------------------------------------------------------------


def _run(
    do: str, requests: Sequence[Mapping[str, Any]], stand: Stand, seconds: float
) -> tuple[list[tuple[int, str, Any]], str]:
    """The answers, and why some are missing ("" if all are there)."""
    with tempfile.TemporaryDirectory(prefix="gradwatch-") as name:
        folder = Path(name)
        asked = {"do": do, "requests": requests, "seconds": seconds}
        (folder / "request.pickle").write_bytes(pickle.dumps(asked, protocol=4))
        failure = _start(stand, folder)
        return list(_answers(folder / "answers.pickle")), failure


def _start(stand: Stand, folder: Path) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _START, json.dumps(place(stand.measured)), folder],
            env={**os.environ, **MALLOC_ENVIRONMENT},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {PATIENCE} s"
    if not done.returncode:
        return ""
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return f"exit status {done.returncode}: {lines[-1] if lines else 'it said nothing'}"


def _answers(file: Path) -> Iterator[tuple[int, str, Any]]:
    if not file.exists():
        return
    with file.open("rb") as stream:
        while True:
            try:
                yield pickle.load(stream)
            except (EOFError, pickle.UnpicklingError):
                return  # cut short by a crash, which is reported elsewhere
