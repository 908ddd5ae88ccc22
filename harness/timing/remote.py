"""The clock's side of the wire: asks a worker for one sample at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.timing.timers import SHORTEST, Reading, Run
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.messages import Task
from gradwatch.harness.workers.worker import Worker


@dataclass(frozen=True)
class Remote:
    """A phase of a step in a worker; only `RemoteTimer` can time it."""

    worker: Worker
    step: str
    phase: str

    def __call__(self) -> None:
        """Run it once, outside any clock."""
        RemoteTimer()(self, 1)


@dataclass(frozen=True)
class RemoteTimer:
    """Asks a worker for one sample, which does not include the communication."""

    now: Callable[[], int] = time.perf_counter_ns
    shortest: float = SHORTEST

    def __call__(self, run: Run, calls: int) -> Reading:
        """Seconds per call, by the worker's own clock."""
        assert isinstance(run, Remote)
        asked: dict[str, Any] = {"step": run.step, "phase": run.phase, "calls": calls}
        reply = run.worker.ask("sample", **asked)
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
