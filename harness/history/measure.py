"""Measures a commit for asv's benchmarks: judges each gradient, times the right ones.

Clock, judge, inputs and sizes come from the working tree; only the `impls` of the
checked-out commit are measured, in their own processes. One process times everything in
turn; several do this one after the other, because each has its own bias.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gradwatch.harness.agreement.suite import in_sample
from gradwatch.harness.judging.cases import Trial, trials
from gradwatch.harness.judging.question import Question
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.timing.compare import PHASES, prepare_steps, workers
from gradwatch.harness.timing.proof import BESIDE, Claims, Judge, proven, variants
from gradwatch.harness.timing.rotation import unforeseen
from gradwatch.harness.timing.samples import KEPT, few
from gradwatch.harness.timing.timers import why_not_timed
from gradwatch.harness.workers.interpreters import Interpreter
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.pool import Outcome, Task, why_unfit
from gradwatch.harness.workers.process import Child, Failed, Link
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import framework_of, load_op

#: The least resident memory, in bytes, that can be measured: it is counted in pages of
#: 4 KiB, and the interpreter allocates and frees objects of its own.
SEEN = 16 << 12

#: The measured peak must be at least this share of the results; some pages are reused.
ALMOST = 0.9


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


class Point(NamedTuple):
    """The op, size, precision, device and backend measured: asv's parameters."""

    op: str
    size: str
    dtype: str
    device: str
    backend: str


@dataclass(frozen=True)
class MeasurementTarget:
    """A checkout whose implementations are measured, with one interpreter.

    `complete` says whether this interpreter must have all of these frameworks.
    """

    measured: Path
    frameworks: Sequence[str]
    python: Path = Path(sys.executable)
    complete: bool = True

    @classmethod
    def here(cls) -> MeasurementTarget:
        """The target that asv's environment describes, or else the working tree."""
        build, python = (os.environ.get(f"ASV_{n}") for n in ("BUILD_DIR", "PYTHON"))
        frameworks = os.environ.get("ASV_FRAMEWORKS", "").split()
        return cls(
            Path(build) if build else ROOT,
            frameworks or ["numpy", "torch", "oneflow"],
            Path(python or sys.executable),
            bool(frameworks),
        )

    def start(self) -> Worker:
        """Start a worker of this target.

        Raises:
            NotMeasured: It does not start.
        """
        # A framework other than NumPy is imported before any page is read: then the
        # objects that pages must not change are noted, and all objects frozen. If
        # PyTorch came later, each collection would traverse it, for 0.2 s a backend.
        first = min(self.frameworks, key=lambda name: name == "numpy")
        python = Interpreter(first, self.python, str(self.python))
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        worker = Worker(python, threads=threads, measured=self.measured)
        try:
            worker.facts  # noqa: B018  # a worker that has sent them has started
        except Died as reason:
            worker.close()
            raise NotMeasured(str(reason)) from None
        return worker


class _Question(NamedTuple):
    """A trial on a device, for some backends."""

    trial: Trial
    device: str
    backends: Sequence[str]

    def point(self, backend: str) -> Point:
        one = self.trial
        return Point(one.op, one.case, one.problem.dtype, self.device, backend)


def measure(
    trials: Iterable[Trial],
    backends: Sequence[str],
    devices: Sequence[str],
    target: MeasurementTarget,
    *,
    processes: int,
    seconds: float,
) -> dict[Point, Figures]:
    """Judge every trial on every backend and device; time those that agree.

    Backends of other frameworks than the target's are skipped. They are timed in so
    many `processes`, one after the other (0 only judges), with `seconds` per phase.

    Raises:
        NotMeasured: The interpreter, a framework or the commit's `impls` do not start,
            or a GPU is slowed down by a variable.
    """
    present = [device for device in devices if device == "cpu" or has_cuda()]
    if why := next(filter(None, map(why_not_timed, present)), ""):
        raise NotMeasured(why)
    wanted = [name for name in backends if framework_of(name) in target.frameworks]
    asked = [
        _Question(one, device, sampled(one, wanted))
        for one in trials
        for device in present
    ]
    figures = dict[Point, Figures]()
    with workers(lambda _: target.start()) as worker:
        for question in asked:
            answer = Question.of(question.trial.problem)
            for backend in question.backends:
                task = Task(question.trial, backend, question.device)
                try:
                    one = _figures(worker(""), task, answer, target.complete)
                except Died as reason:  # only this question is lost
                    one = Figures(why=f"crash: {reason}")
                figures[question.point(backend)] = one
    for turn in range(processes):
        right = list[_Question]()
        for question in asked:
            names = [b for b in question.backends if not figures[question.point(b)].why]
            right += [question._replace(backends=names)] if names else []
        shift = turn * len(right) // 3  # the first op is slower
        _add_times(figures, right[shift:] + right[:shift], target, seconds)
    for one in figures.values():
        count = min(KEPT, len(one.forward), len(one.backward))
        one.forward, one.backward = few(one.forward, count), few(one.backward, count)
    return figures


def sampled(one: Trial, backends: Sequence[str]) -> list[str]:
    """The backends to measure in a trial: all at a size, in a case only its sample."""
    every = one.case not in one.problem.op.cases
    return [name for name in backends if every or in_sample(one, name)]


# Pages --------------------------------------------------------------------------


def unrunnable(ops: Sequence[str]) -> dict[str, str]:
    """The reason why a page cannot be loaded, or its formula not run, by op.

    asv and the processes that it starts load every page, and judge by its formula: the
    figures of all ops would be lost if one exits, crashes or hangs there.
    """
    with Child(probe) as child:
        found = [one for one in child.run(ops, list, str) if isinstance(one, Failed)]
    return {one.op: f"{one.verdict}: {one.message}" for one in found}


def probe(content: bytes, link: Link) -> None:
    """Load each page of a request, and run its formula on its first case."""
    for op in msgspec.msgpack.decode(content, type=list[str]):
        with link.at(op):
            one = next(trials(load_op(op), regimes=["normal"], dtypes=["float64"]))
            reference(one.problem)


# Judging ------------------------------------------------------------------------


def _figures(worker: Worker, task: Task, right: Question, complete: bool) -> Figures:
    """Judge the results of a worker, and measure its peak of memory."""
    outcome = Outcome.of(task, worker.reply(task.request, **task.payload()), "")
    if outcome.kind == "missing" and complete and task.device == "cpu":
        raise NotMeasured(f"{task.backend}: {outcome.message}")
    if outcome.result is None:
        return Figures(why=why_unfit([(outcome.kind, outcome.message)]))
    # The ratios of all commits need the same radius.
    _ = right.right  # computed in full: no large tensor is accepted by a sample
    judgements = list(outcome.judged(right))
    ratios = [j.ratio for j in judgements if j.tensor in outcome.result.gradients]
    payload = {**task.payload(), "options": {"steps": {"one": task.backend}, "peak": 1}}
    peak = worker.ask("prepare", **payload)["peak"]["one"]
    return Figures(
        why=why_unfit((j.verdict, j.message) for j in judgements),
        ratio=max(ratios) if ratios and np.isfinite(ratios).all() else None,
        peak=_seen(peak, outcome),
    )


def _seen(peak: int | None, outcome: Outcome) -> int | None:
    """The peak; None if the results alone are larger, as an allocator hid it then."""
    assert outcome.result is not None
    given = [a for a in outcome.task.trial.problem.cotangents if a is not None]
    gradients = [g for g in outcome.result.gradients.values() if g is not None]
    # A gradient that is the cotangent itself takes no memory.
    made = [g for g in gradients if not any(np.array_equal(g, a) for a in given)]
    least = sum(a.nbytes for a in (*outcome.result.outputs.values(), *made))
    return None if not peak or least < SEEN or peak < ALMOST * least else peak


# Timing -------------------------------------------------------------------------


def _add_times(
    figures: dict[Point, Figures],
    asked: Sequence[_Question],
    target: MeasurementTarget,
    seconds: float,
) -> None:
    """Time in one fresh process, all backends of a question in turn.

    If the process ends, only the question is lost; the others go on in another one.
    Backends that are refused only because of another one are timed again without it.
    """
    with workers(lambda _: target.start()) as worker:
        waiting = list(reversed(asked))
        while waiting:
            question = waiting.pop()
            try:
                first, samples, refused = _time(worker(""), question, seconds)
            except Died as reason:  # only this question is lost
                refused = dict.fromkeys(question.backends, f"while timing: {reason}")
            again = [b for b, why in refused.items() if why.startswith(BESIDE)]
            for backend in question.backends:
                one = figures[question.point(backend)]
                if backend in again:
                    continue
                if backend in refused:
                    kept = Figures(refused[backend], one.ratio, peak=one.peak)
                    figures[question.point(backend)] = kept
                    continue
                one.forward += samples["forward"][backend]
                one.backward += samples["backward"][backend]
                one.first = min(first[backend], one.first or first[backend])
            if again:
                waiting.append(question._replace(backends=again))
                worker("").close()


def _time(
    worker: Worker, question: _Question, seconds: float
) -> tuple[Any, Any, dict[str, str]]:
    """Seconds of the first pass, by backend; samples by phase and backend; refusals."""
    steps = {name: name for name in question.backends}
    sources = variants(question.trial)

    def take() -> tuple[tuple[Any, Any], Claims]:
        device = question.device
        ready = prepare_steps(worker, sources, steps, device, seed=unforeseen())
        samples = {
            phase: worker.ask("in_turn", phase=phase, seconds=seconds)["samples"]
            for phase in PHASES
        }
        claims = {
            name: (worker, {p: float(np.median(samples[p][name])) for p in PHASES})
            for name in steps
        }
        return (ready["first"], samples), claims

    judge = Judge([source.problem for source in sources], question.device)
    (first, samples), refused = proven(take, judge)
    return first, samples, refused
