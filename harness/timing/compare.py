"""Times backends in turn, and compares two sides: `gradwatch time` and `compare`.

Each framework has an interpreter of its own, and the clock runs here: it asks a worker
for one sample at a time, never for two at once. Sides are judged first and then timed:
in one process if they can share one, otherwise in several pairs of fresh processes.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.question import Question
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import CompareRecord, Phase, TimeRecord
from gradwatch.harness.timing.proof import Claims, Judge, proven, variants
from gradwatch.harness.timing.rotation import unforeseen
from gradwatch.harness.timing.samples import (
    FEWEST,
    Comparison,
    Samples,
    few,
    interleave,
    paired,
    resampled,
    verdict_on,
)
from gradwatch.harness.timing.timers import SHORTEST, Reading
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.pool import Outcome, Task, why_unfit
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import framework_of

PHASES: tuple[Phase, ...] = ("forward", "backward")


def remote_sample(worker: Worker, step: str, phase: Phase, calls: int) -> Reading:
    """Take a sample by the worker's own clock, without the communication."""
    reply = worker.ask("sample", step=step, phase=phase, calls=calls)
    return Reading(*reply["reading"])


@contextlib.contextmanager
def workers(
    start: Callable[[Any], Worker] = lambda name: Worker(interpreter_of(name)),
) -> Iterator[Callable[[Any], Worker]]:
    """Yield a function that returns the worker of a framework or place; end all."""
    started: dict[Any, Worker] = {}

    def worker(place: Any) -> Worker:
        if (one := started.get(place)) is None or not one.alive:
            if one:  # it has crashed, and its times are lost
                one.close()
            one = started[place] = start(place)
        return one

    try:
        yield worker
    finally:
        for running in started.values():
            running.close()


def prepare_steps(
    worker: Worker,
    sources: Sequence[Trial],
    steps: Mapping[str, str],
    device: str,
    *,
    seed: int,
) -> Mapping[str, Any]:
    """Let a worker prepare steps; `steps` maps the key of a step to its backend.

    `sources` are one trial with several sets of numbers, between which the inputs
    change; all processes that are timed in turn get the same `seed` for these changes.
    """
    backend = next(iter(steps.values()))
    payload, *others = (Task(one, backend, device).payload() for one in sources)
    options = {"steps": dict(steps), "others": others, "seed": seed}
    prepared = worker.ask("prepare", **{**payload, "options": options})
    worker.rest()
    return prepared


def take_in_turn(
    steps: Mapping[str, Worker],
    phases: Sequence[Phase],
    device: str,
    *,
    budget: float,
    seed: int,
) -> tuple[dict[tuple[str, Phase], Samples], Claims]:
    """Time prepared steps, by their keys, in turn; return samples and claimed times."""
    runs = {
        (key, phase): partial(remote_sample, worker, key, phase)
        for key, worker in steps.items()
        for phase in phases
    }
    # A GPU's events are around each call, so none is batched.
    shortest = SHORTEST if device == "cpu" else 0.0
    samples = interleave(runs, budget=budget, shortest=shortest, seed=seed)
    return samples, {
        key: (worker, {phase: samples[key, phase].median for phase in phases})
        for key, worker in steps.items()
    }


def time_trial(
    trial: Trial,
    backends: Sequence[str],
    worker: Callable[[str], Worker],
    *,
    device: str = "cpu",
    budget: float,
    seed: int = 0,
) -> tuple[list[TimeRecord], dict[str, str]]:
    """Time both phases of a trial on backends that agree, all of them in turn.

    `worker` returns the worker of a framework; `budget` is in seconds, for the whole
    trial. The backends were judged and pass. Returns a record for each backend and
    phase, and the reasons for missing ones.
    """
    untimed, ready = dict[str, str](), dict[str, tuple[Worker, Mapping[str, Any]]]()
    sources = variants(trial, seed)
    judge = Judge([source.problem for source in sources], device)

    def take() -> tuple[dict[tuple[str, Phase], Samples], Claims]:
        moves = unforeseen()
        for framework in sorted(set(map(framework_of, backends))):
            steps = {b: b for b in backends if framework_of(b) == framework}
            try:
                place = worker(framework)
                prepared = prepare_steps(place, sources, steps, device, seed=moves)
                ready.update(dict.fromkeys(steps, (place, prepared)))
            except Died as reason:
                untimed.update(dict.fromkeys(steps, str(reason)))
        places = {name: one[0] for name, one in ready.items() if name not in untimed}
        return take_in_turn(places, PHASES, device, budget=budget, seed=seed)

    try:
        samples, refused = proven(take, judge)
    except (ValueError, Died) as reason:  # no time at all: a page has broken the clock
        return [], dict.fromkeys(backends, str(reason)) | untimed
    untimed |= refused
    least = judge.least
    records = list[TimeRecord]()
    for name, (place, prepared) in ready.items():
        for phase in () if name in untimed else PHASES:
            taken, framework = samples[name, phase], framework_of(name)
            record = TimeRecord(
                op=trial.problem.op.name,
                case=trial.case,
                backend=name,
                framework=framework,
                framework_version=place.facts["version"],
                threads=place.facts["threads"],
                device=device,
                dtype=trial.problem.dtype,
                phase=phase,
                seconds=taken.median,
                low=taken.interval.low,
                high=taken.interval.high,
                samples=few(taken.seconds.tolist()),
                taken=len(taken.seconds),
                faults=taken.faults,
                doubts=list(taken.doubts(least[phase].bytes)),
                first=prepared["first"][name],
                bytes=least[phase].bytes,
                flops=least[phase].flops,
            )
            records.append(record)
    return records, untimed


# Comparing ------------------------------------------------------------------------

PAIRS = 16  # process pairs by default: they reduce a spread of 5.5 % to 1.5 %
SAMPLED = 0.5 * PAIRS  # seconds of sampling by default; starting takes five times that
LEAST = 0.03  # of the time: a smaller change is neither slower nor faster


class WrongGradient(Died):
    """A side does not agree with the reference, so it is not timed."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a backend, at the commit checked out in `measured`."""

    name: str  # as the user called it
    backend: str
    measured: Path = ROOT

    @property
    def place(self) -> tuple[str, Path]:
        """The framework and commit: sides with the same ones can share a process."""
        return framework_of(self.backend), self.measured


@dataclass(frozen=True)
class Plan:
    """Trial and budget of a comparison; the budget is for all pairs of a phase.

    A change by less than `least`, a share of the time, is none. `enough` is called with
    the number of pairs after each, and returns whether to stop.
    """

    trial: Trial
    budget: float
    pairs: int = PAIRS
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    least: float = LEAST
    enough: Callable[[int], bool] = lambda pairs: False


def most_pairs(a: Side, b: Side, plan: Plan) -> int:
    """The most pairs of processes that a comparison takes; 1 if they can share one."""
    return 1 if a.place == b.place else plan.pairs


def compare_phases(
    a: Side, b: Side, plan: Plan, phases: Sequence[Phase]
) -> list[CompareRecord]:
    """Time B and A in turn; return the ratio B / A of each phase with its interval.

    They share a process if possible, which is the most precise. Otherwise several pairs
    of fresh processes are used, because each process has its own bias, which more calls
    in it do not reveal. The sides of a pair start in random order. All phases are timed
    in the same pairs: starting takes longer than timing.

    Raises:
        WrongGradient: A side does not agree; both are judged before the timing.
        Absent: A framework or the device is missing.
        Died: A worker was lost, the op failed, or the timed calls perhaps did nothing.
    """
    started = time.monotonic()
    order, sources = random.Random(plan.seed), variants(plan.trial, plan.seed)
    judge = Judge([source.problem for source in sources], plan.device)
    taken = {phase: list[Comparison]() for phase in phases}
    unclear, count = [*phases], 0
    while unclear and count < most_pairs(a, b, plan):
        pair = _one_pair(a, b, plan, order, judge, unclear, not count)
        count += 1
        for phase, one in pair.items():
            taken[phase].append(one)
        if plan.enough(count) and count >= FEWEST:
            break
        unclear = [p for p in unclear if not is_clear(*_logs(taken[p]), plan.least)]
    took = (time.monotonic() - started) / len(phases)
    return [_record(a, b, plan, phase, pairs, took) for phase, pairs in taken.items()]


def _record(
    a: Side, b: Side, plan: Plan, phase: Phase, pairs: Sequence[Comparison], took: float
) -> CompareRecord:
    """The estimates of one phase from its pairs of processes, or from one process."""
    first, short = pairs[0], ""
    if a.place == b.place:
        ratio, noise, short = first.ratio, first.noise, first.short
    else:
        ratio, noise = map(resampled, _logs(pairs))
        if len(pairs) < FEWEST:
            short = f"an interval needs {FEWEST} pairs of processes"
    return CompareRecord(
        a=a.name,
        b=b.name,
        op=plan.trial.problem.op.name,
        case=plan.trial.case,
        backend=a.backend if a.backend == b.backend else "",
        device=plan.device,
        dtype=plan.trial.problem.dtype,
        phase=phase,
        ratio=ratio.value,
        low=ratio.low,
        high=ratio.high,
        level=ratio.level,
        verdict=verdict_on(ratio, noise, same=plan.least),
        pairs=len(pairs),
        noise=noise.value,
        noise_low=noise.low,
        noise_high=noise.high,
        a_seconds=statistics.median(pair.a.median for pair in pairs),
        b_seconds=statistics.median(pair.b.median for pair in pairs),
        short=short,
        seconds=took,
    )


def _check(worker: Worker, side: Side, plan: Plan) -> None:
    """Raise WrongGradient if a side must not be timed."""
    task = Task(plan.trial, side.backend, plan.device)
    outcome = Outcome.of(task, worker.ask(task.request, **task.payload()), "")
    judgements = outcome.judged(Question.of(task.trial.problem))
    why = why_unfit((j.verdict, j.message) for j in judgements)
    if why:
        raise WrongGradient(f"{side.backend} of {side.name} is wrong: {why}")


@contextlib.contextmanager
def judging() -> Iterator[Callable[[Side, Side, Plan], None]]:
    """Yield a judge of sides that are not timed; it raises WrongGradient, too.

    All sides that it judges share its workers.
    """
    with workers(_started) as worker:

        def judge(a: Side, b: Side, plan: Plan) -> None:
            for side in (a, b):
                _check(worker((*side.place, plan.threads)), side, plan)

        yield judge


def _started(place: tuple[str, Path, int]) -> Worker:
    framework, measured, threads = place
    python = interpreter_of(framework)
    return Worker(python, threads=threads, measured=measured, huge_pages=True)


def _logs(pairs: Sequence[Comparison]) -> tuple[list[float], list[float]]:
    """The logarithms of the ratios of pairs, and those of their noises."""
    ratios = [math.log(pair.ratio.value) for pair in pairs]
    return ratios, [math.log(pair.noise.value) for pair in pairs]


#: Pairs in a row with the same answer after which no further ones are started.
AGREEING = 2


def is_clear(ratios: Sequence[float], noises: Sequence[float], least: float) -> bool:
    """Whether more pairs could hardly change the answer; both are logarithms.

    The verdict is resolved, with an interval wholly beyond a change by `least` or
    wholly within, and was the same before the last pair. Stopping early favours no
    answer: of two equal sides the interval would have to pass `least`, not 1.
    """
    if len(ratios) <= FEWEST:
        return False
    answers = set()
    for count in range(len(ratios) - AGREEING + 1, len(ratios) + 1):
        found = resampled(ratios[:count])
        verdict = verdict_on(found, resampled(noises[:count]), same=least)
        beyond = found.low > 1 + least or found.high < 1 / (1 + least)
        answers.add(verdict if beyond or verdict == "no difference" else "not resolved")
    return len(answers) == 1 and "not resolved" not in answers


def _one_pair(
    a: Side,
    b: Side,
    plan: Plan,
    order: random.Random,
    judge: Judge,
    phases: Sequence[Phase],
    first: bool,
) -> dict[Phase, Comparison]:
    """Start two fresh processes in random order, or one; then time the phases."""
    sides = [("a", a), ("b", b)]
    order.shuffle(sides)
    sources, budget = variants(plan.trial, plan.seed), plan.budget
    with workers(_started) as started:
        places = {s.place: started((*s.place, plan.threads)) for _, s in sides}
        if len(places) > 1:
            budget /= plan.pairs
        for side in dict.fromkeys(side for _, side in sides) if first else ():
            _check(places[side.place], side, plan)

        def take() -> tuple[dict[Phase, Comparison], Claims]:
            seed, draw = unforeseen(), order.randrange(1 << 30)
            for place, worker in places.items():
                steps = {name: s.backend for name, s in sides if s.place == place}
                prepare_steps(worker, sources, steps, plan.device, seed=seed)
            asked = {name: places[side.place] for name, side in sides}
            samples, claims = take_in_turn(
                asked, phases, plan.device, budget=budget * len(phases), seed=draw
            )
            return {p: paired(samples["a", p], samples["b", p]) for p in phases}, claims

        taken, refused = proven(take, judge)
    for name, why in refused.items():
        side = dict(sides)[name]
        raise Died(f"{side.backend} of {side.name} is not timed: {why}")
    return taken
