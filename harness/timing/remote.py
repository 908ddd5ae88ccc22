"""The clock's side of the wire: asks a worker for one sample at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.timing.timers import SHORTEST, Reading, Run
from gradwatch.harness.workers.client import Line
from gradwatch.harness.workers.messages import Task
from gradwatch.harness.workers.pythons.interpreters import interpreter_of
from gradwatch.harness.workers.worker import Died


@dataclass(frozen=True)
class Remote:
    """A phase of a step in a worker; only `RemoteTimer` can time it."""

    line: Line
    step: str
    phase: str
    cold: bool = True

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
        reply = run.line.ask(
            "sample", step=run.step, phase=run.phase, calls=calls, cold=run.cold
        )
        return Reading(*reply["reading"])


@contextlib.contextmanager
def lines(
    threads: int = 1,
    frameworks: Collection[str] = (),
    waiting: Callable[[], None] = lambda: None,
) -> Iterator[Callable[[str], Line]]:
    """One worker per framework; all are ended at the end.

    Those of `frameworks` are started at once, and so import beside each other; any
    other at its first use. `waiting` is that of `Line`.
    """
    started: dict[str, Line] = {}

    def begun(framework: str) -> Line:
        return Line(interpreter_of(framework), threads=threads, waiting=waiting)

    def line(framework: str) -> Line:
        fresh = started.pop(framework, None)
        if fresh is None or fresh.ended:  # a crash costs what was timed then
            if fresh:
                fresh.close()
            fresh = begun(framework)
        fresh.facts  # noqa: B018  # or one that did not start would be kept
        started[framework] = fresh
        return fresh

    try:
        for framework in frameworks:
            with contextlib.suppress(Died):  # it will be said where it is needed
                started[framework] = begun(framework)
        yield line
    finally:
        for running in started.values():
            running.close()


def prepare_steps(
    line: Line,
    sources: Sequence[Trial],
    steps: Mapping[str, str],
    device: str,
    *,
    seed: int,
    peak: bool = True,
) -> Mapping[str, Any]:
    """Let a worker prepare steps; `steps` maps the key of a step to its backend.

    `sources` are one trial with several sets of numbers, between which the steps move;
    all processes that are timed in turn get the same `seed` for these moves.
    """
    payload, *others = (
        Task.of(source, next(iter(steps.values())), device).payload()
        for source in sources
    )
    numbers = [
        {"inputs": other["inputs"], "cotangents": other["cotangents"]}
        for other in others
    ]
    options = {"steps": dict(steps), "others": numbers, "peak": peak, "seed": seed}
    return line.ask("prepare", **{**payload, "options": options})
