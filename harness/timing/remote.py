"""The clock's side of the wire: a worker that is asked for one sample at a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from harness.judging.cases import Trial
from harness.project.paths import ROOT
from harness.timing.timers import Reading, Run
from harness.workers.interpreters import interpreter_of
from harness.workers.messages import Task
from harness.workers.process import STARTING, Died, Event, Worker, import_error

PATIENCE = 120.0  # seconds for one answer: preparing the largest size takes a few


class Absent(Died):
    """A framework or a device that is not here."""


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


def prepare_steps(
    line: Line, trial: Trial, steps: Mapping[str, str], device: str
) -> Mapping[str, Any]:
    """Have a worker make steps ready: backends by the key of their step."""
    payload = Task.of(trial, next(iter(steps.values())), device).payload()
    return line.ask("prepare", **{**payload, "options": {"steps": dict(steps)}})
