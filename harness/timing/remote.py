"""The clock's side of the wire: asks workers for one sample at a time.

Backends of all frameworks are timed in turn, call by call, although each has its own
interpreter: the clock runs here, and never asks for two samples at the same time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gradwatch.harness.judging.cases import Trial, variants
from gradwatch.harness.project.records import Phase, TimeRecord
from gradwatch.harness.timing.evidence.proof import Claims, Judge, proven
from gradwatch.harness.timing.evidence.rotation import unforeseen
from gradwatch.harness.timing.interleave import interleave
from gradwatch.harness.timing.samples import Samples, few
from gradwatch.harness.timing.timers import SHORTEST, Reading
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.pool import Task
from gradwatch.harness.workers.process import Died
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import framework_of

PHASES: tuple[Phase, ...] = ("forward", "backward")


def remote_sample(worker: Worker, step: str, phase: Phase, calls: int) -> Reading:
    """One sample by the worker's own clock: without the communication."""
    reply = worker.ask("sample", step=step, phase=phase, calls=calls)
    return Reading(*reply["reading"])


@contextlib.contextmanager
def workers(
    start: Callable[[Any], Worker] = lambda name: Worker(interpreter_of(name)),
) -> Iterator[Callable[[Any], Worker]]:
    """One worker per framework, or place, from its first use on; all end at the end."""
    started: dict[Any, Worker] = {}

    def worker(place: Any) -> Worker:
        if (one := started.get(place)) is None or not one.alive:
            if one:  # a crash costs what was timed then
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

    `sources` are one trial with several sets of numbers, between which the steps move;
    all processes that are timed in turn get the same `seed` for these moves.
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
    """Time prepared steps, by their keys, in turn: the samples, and what they claim."""
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

    `worker` gives that of a framework; `budget` is in seconds, for the whole trial. The
    backends were judged and pass. Returns a record for each backend and phase, and the
    reasons for missing ones.
    """
    untimed: dict[str, str] = {}
    ready: dict[str, tuple[Worker, Mapping[str, Any]]] = {}
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
