"""What forward and backward take, side by side: `gradwatch time` and `compare`.

Backends of all frameworks are timed in turn, call by call, though each lives in its own
interpreter: the clock runs here and asks the workers for one sample at a time, never
two at once. What does not agree is not timed.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from harness.judging.cases import Trial
from harness.judging.reference import reference
from harness.judging.verdict import Judgement, judge_tensors
from harness.project.paths import ROOT
from harness.timing.interleave import interleave
from harness.timing.intervals import FEWEST, Estimate, pairs_needed, resampled
from harness.timing.samples import Comparison, Samples, judged, paired
from harness.timing.timers import Reading, Run
from harness.timing.work import Work, work
from harness.workers.interpreters import interpreter_of
from harness.workers.messages import Outcome, Task
from harness.workers.process import STARTING, Died, Event, Worker, import_error
from impls.catalogue import framework_of

PHASES = ("forward", "backward")
KEPT = 200  # samples in a record, evenly spread over those taken
PATIENCE = 120.0  # seconds for one answer: preparing the largest size takes a few
PAIRS = 16  # process pairs by default: a spread of 5.5 % in one pair turns into 1.5 %
SAMPLED = 0.5 * PAIRS  # seconds by default for so many; to start them takes five times
WITHIN = 0.04  # of 1, in 95 % of comparisons: what the pairs needed are counted for

Record = dict[str, Any]


class Absent(Died):
    """A framework or a device that is not here."""


class WrongGradient(Died):
    """A side that does not agree with the reference: it is not timed."""


class Line:
    """A worker that is asked one thing at a time; its start is not waited for.

    Raises:
        Died: it cannot be started, or a question was its end.
        Absent: its interpreter or framework is not here.
    """

    def __init__(
        self,
        framework: str,
        *,
        threads: int = 1,
        measured: Path = ROOT,
        huge_pages: bool = False,
    ) -> None:
        interpreter = interpreter_of(framework)
        if interpreter.why_missing:
            raise Absent(f"{interpreter.why_missing}; to mend it: {interpreter.mend}")
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._worker = Worker(
            interpreter,
            self._events,
            threads=threads,
            measured=measured,
            huge_pages=huge_pages,
        )

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """What it says of itself when it has started; see `harness.endpoint.probe`."""
        facts = self._answer(STARTING)
        if why := import_error(facts):
            self.close()
            raise Absent(why)
        return facts

    def ask(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """Its answer to a request; an error there is an error here."""
        self.facts  # noqa: B018  # its first answer, which is to none of these
        self._worker.send(request, payload)
        reply = self._answer(PATIENCE + payload.get("budget", 0.0))
        if reply["kind"] != "result":
            kind = Absent if reply["kind"] == "missing" else Died
            raise kind(str(reply["message"]))
        return reply

    def _answer(self, seconds: float) -> Mapping[str, Any]:
        try:
            reply = self._events.get(timeout=seconds).reply
        except Empty:
            self.close()
            raise Died(f"no answer in {seconds:g} s") from None
        if reply is None:
            raise Died(self._worker.end())
        return reply

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


@dataclass(frozen=True)
class Remote:
    """A phase of a step that a worker has ready; only `RemoteTimer` can run it."""

    line: Line
    step: str
    phase: str
    cold: bool = True

    def __call__(self) -> None:
        """Run it once, outside any clock."""
        RemoteTimer()(self, 1)


@dataclass(frozen=True)
class RemoteTimer:
    """Asks a worker for one sample; the trip there and back is not in it."""

    now: Callable[[], int] = time.perf_counter_ns

    def __call__(self, run: Run, calls: int) -> Reading:
        """Seconds a call, by the worker's own clock."""
        assert isinstance(run, Remote)
        reply = run.line.ask(
            "sample", step=run.step, phase=run.phase, calls=calls, cold=run.cold
        )
        return Reading(*reply["reading"])


@contextlib.contextmanager
def lines(threads: int = 1) -> Iterator[Callable[[str], Line]]:
    """A worker per framework, started when first asked for, ended at the end."""
    started: dict[str, Line] = {}

    def line(framework: str) -> Line:
        if framework not in started:
            fresh = Line(framework, threads=threads)
            fresh.facts  # noqa: B018  # or one that did not start would be kept
            started[framework] = fresh
        return started[framework]

    try:
        yield line
    finally:
        for running in started.values():
            running.close()


# Times --------------------------------------------------------------------------


def time_trial(
    trial: Trial,
    backends: Sequence[str],
    line: Callable[[str], Line],
    *,
    device: str = "cpu",
    budget: float,
    seed: int = 0,
) -> tuple[list[Record], dict[str, str]]:
    """Time both phases of a trial on backends that agree, all of them in turn.

    Args:
        trial: One case of an op, with its numbers.
        backends: Names of backends that were judged and pass.
        line: The worker of a framework.
        device: "cpu" or "cuda".
        budget: Seconds for all of it.
        seed: Of the order in which samples are taken.

    Returns:
        A record for each backend and phase, and why a backend has none.
    """
    untimed: dict[str, str] = {}
    ready: dict[str, tuple[Line, Mapping[str, Any]]] = {}
    for framework in sorted(set(map(framework_of, backends))):
        names = [b for b in backends if framework_of(b) == framework]
        try:
            prepared = _prepare(
                line(framework), trial, dict(zip(names, names, strict=True)), device
            )
        except Died as reason:
            untimed |= dict.fromkeys(names, str(reason))
        else:
            ready |= dict.fromkeys(names, (line(framework), prepared))
    if not ready:
        return [], untimed
    runs = {
        f"{name} {phase}{state}": Remote(place, name, phase, cold=not state)
        for name, (place, _) in ready.items()
        for phase in PHASES
        for state in (("",) if device == "cpu" else ("", " warm"))
    }
    samples = interleave(runs, budget=budget, timer=RemoteTimer(), seed=seed)
    least = work(trial.problem)
    records = [
        {
            **_place(trial, name, device, line_of[0].facts),
            "phase": phase,
            **_figures(samples[f"{name} {phase}"], least[phase].bytes),
            "warm_seconds": _median(samples.get(f"{name} {phase} warm")),
            "first": line_of[1]["first"][name],
            "peak_bytes": _seen(line_of[1]["peak"][name], least["backward"]),
            "bytes": least[phase].bytes,
            "flops": least[phase].flops,
        }
        for name, line_of in ready.items()
        for phase in PHASES
    ]
    return records, untimed


def _median(samples: Samples | None) -> float | None:
    """On a GPU with what the last call left in the L2; elsewhere no figure."""
    return samples.median if samples else None


def _seen(peak: int | None, backward: Work) -> int | None:
    """The peak, unless it is less than the gradients: an allocator then hides it."""
    return peak if peak is not None and peak >= backward.out else None


def _prepare(
    line: Line, trial: Trial, steps: Mapping[str, str], device: str
) -> Mapping[str, Any]:
    """Have a worker make steps ready: backends by the key of their step."""
    payload = Task.of(trial, next(iter(steps.values())), device).payload()
    return line.ask("prepare", **{**payload, "options": {"steps": dict(steps)}})


def _place(trial: Trial, backend: str, device: str, facts: Mapping[str, Any]) -> Record:
    return {
        "op": trial.problem.op.name,
        "case": trial.case,
        "backend": backend,
        "framework": framework_of(backend),
        "framework_version": facts["version"],
        "threads": facts["threads"],
        "device": device,
        "dtype": trial.problem.dtype,
    }


def _figures(samples: Samples, moved: int) -> Record:
    interval = samples.interval
    spread = np.linspace(0, len(samples.seconds) - 1, min(KEPT, len(samples.seconds)))
    return {
        "seconds": samples.median,
        "low": interval.low,
        "high": interval.high,
        "samples": samples.seconds[spread.round().astype(int)].tolist(),
        "taken": len(samples.seconds),
        "calls": samples.calls,
        "warmup": samples.warmup,
        "faults": samples.faults,
        "doubts": list(samples.doubts(moved)),
    }


# Comparisons --------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """What is compared: a backend, at the commit whose checkout is `measured`."""

    name: str  # as the user called it
    backend: str
    measured: Path = ROOT

    @property
    def framework(self) -> str:
        """Whose interpreter runs it."""
        return framework_of(self.backend)

    def beside(self, other: Side) -> bool:
        """Whether both can live in one process."""
        return self.framework == other.framework and self.measured == other.measured


@dataclass(frozen=True)
class Plan:
    """What is compared and for how long: `budget` is seconds for all pairs together."""

    trial: Trial
    phase: str
    budget: float
    pairs: int = PAIRS
    device: str = "cpu"
    threads: int = 1
    seed: int = 0


def compare_sides(a: Side, b: Side, plan: Plan) -> Record:
    """B against A in turn: how many times as long B takes, with its interval.

    In one process where both can live in one, which is the sharpest. Otherwise in
    several pairs of fresh processes, because each process has a bias of its own that
    no number of calls in it can show; which side starts first is drawn.

    Raises:
        WrongGradient: a side does not agree; it is judged before anything is timed.
        Absent: a framework or the device is not here.
        Died: a worker was lost, or the op failed.
    """
    started = time.monotonic()
    found = (_in_one_process if a.beside(b) else _in_pairs)(a, b, plan)
    return {
        "a": a.name,
        "b": b.name,
        "op": plan.trial.problem.op.name,
        "case": plan.trial.case,
        "backend": a.backend if a.backend == b.backend else "",
        "device": plan.device,
        "dtype": plan.trial.problem.dtype,
        "phase": plan.phase,
        **found,
        "seconds": time.monotonic() - started,
    }


def _check(line: Line, side: Side, plan: Plan) -> None:
    """Raise WrongGradient unless all that a side computes agrees."""
    task = Task.of(plan.trial, side.backend, plan.device)
    verdicts = judged_reply(task, line.ask(task.request, **task.payload()))
    wrong = [f"{j.verdict}: {j.message}" for j in verdicts if not j.passes]
    if wrong:
        raise WrongGradient(f"{side.backend} of {side.name} is wrong: {wrong[0]}")


def judged_reply(task: Task, reply: Mapping[str, Any]) -> tuple[Judgement, ...]:
    """Verdicts on all tensors that `harness.workers.evaluate.evaluate` returned."""
    result = Outcome.of(task, {"kind": "result", "seconds": 0.0, **reply}, "").result
    assert result is not None  # the reply is a result: other kinds have raised
    right, dtype = reference(task.problem), task.problem.dtype
    return judge_tensors(right, result.tensors, result.dtypes, dtype=dtype)


def _in_one_process(a: Side, b: Side, plan: Plan) -> Record:
    with contextlib.closing(Line(a.framework, threads=plan.threads)) as line:
        for side in dict.fromkeys((a, b)):
            _check(line, side, plan)
        steps = {"a": a.backend, "b": b.backend}
        _prepare(line, plan.trial, steps, plan.device)
        asked = {"a": "a", "b": "b", "phase": plan.phase, "budget": plan.budget}
        told: dict[str, Any] = line.ask("compare", **asked)["comparison"]
    count, level = told["rounds"], told["level"]
    ratio, noise = (_estimate(told[n], count, level) for n in ("ratio", "noise"))
    return _told(ratio, noise, 1, told["medians"], told["short"])


def _in_pairs(a: Side, b: Side, plan: Plan) -> Record:
    order = random.Random(plan.seed)
    found = [_one_pair(a, b, plan, order, i == 0) for i in range(plan.pairs)]
    ratios = [math.log(pair.ratio.value) for pair in found]
    noises = [math.log(pair.noise.value) for pair in found]
    medians = [
        statistics.median(pair.a.median for pair in found),
        statistics.median(pair.b.median for pair in found),
    ]
    few = f"an interval needs {FEWEST} pairs of processes"
    told = _told(
        resampled(ratios),
        resampled(noises),
        plan.pairs,
        medians,
        few if plan.pairs < FEWEST else "",
    )
    enough = pairs_needed(ratios, WITHIN) if plan.pairs > 1 else None
    return {**told, "pairs_needed": enough}


def _one_pair(
    a: Side, b: Side, plan: Plan, order: random.Random, judging: bool
) -> Comparison:
    """Two fresh processes, started in a drawn order, then timed in turn."""
    sides = [("a", a), ("b", b)]
    order.shuffle(sides)
    with contextlib.ExitStack() as stack:
        started = [
            (*side, stack.enter_context(_fresh(side[1], plan.threads)))
            for side in sides
        ]
        runs: dict[str, Run] = {}
        for name, side, line in started:
            if judging:
                _check(line, side, plan)
            _prepare(line, plan.trial, {name: side.backend}, plan.device)
            runs[name] = Remote(line, name, plan.phase)
        both = interleave(
            runs,
            budget=plan.budget / plan.pairs,
            timer=RemoteTimer(),
            seed=order.randrange(1 << 30),
        )
    return paired(both["a"], both["b"])


def _fresh(side: Side, threads: int) -> contextlib.closing[Line]:
    """A process of its own for a side."""
    return contextlib.closing(
        Line(side.framework, threads=threads, measured=side.measured, huge_pages=True)
    )


def _estimate(told: Sequence[float], count: int, level: float) -> Estimate:
    value, low, high = told
    return Estimate(value, low, high, count, level)


def _told(
    ratio: Estimate, noise: Estimate, pairs: int, medians: Sequence[float], short: str
) -> Record:
    return {
        "ratio": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "level": ratio.level,
        "verdict": judged(ratio, noise),
        "pairs": pairs,
        "noise": noise.value,
        "noise_low": noise.low,
        "noise_high": noise.high,
        "a_seconds": medians[0],
        "b_seconds": medians[1],
        "short": short,
    }
