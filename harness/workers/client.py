"""The client of one worker: it sends one request at a time and waits for the answer.

Timing, comparisons, the history and the doctor use it. harness/workers/pool.py sends
many tasks to many workers instead; both use the same `Worker`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.pythons.interpreters import Interpreter
from gradwatch.harness.workers.worker import (
    STARTING,
    Died,
    Event,
    Worker,
    import_error,
)

PATIENCE = 120.0  # seconds for one answer: preparing the largest size takes a few
LOOK = 1.0  # seconds between two calls of `waiting`
#: Of a process's CPU clocks the one that has what the scheduler accounts (the kernel's
#: CPUCLOCK_SCHED; clock_getcpuclockid(3) gives the same number).
_ALL_THREADS = 2
CLOCK = ("prepare",)  # a request that needs all that the clock is made of


class Absent(Died):
    """A framework or a device is missing here."""


class Line:
    """A worker that gets one request at a time; the constructor does not wait.

    Once it has `ended` it answers nothing more. `handlers` are requests that it will
    get, or others of the same module: the clock's. `waiting` is called every second or
    so, as long as answers come or are waited for.

    Raises:
        Died: It cannot be started.
        Absent: Its interpreter is missing.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        *,
        threads: int = 1,
        measured: Path = ROOT,
        huge_pages: bool = False,
        handlers: Sequence[str] = CLOCK,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if interpreter.why_missing:
            raise Absent(interpreter.explained)
        self.ended, self.framework = False, interpreter.framework
        self._waiting, self._called = waiting, time.monotonic()
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._worker = Worker(
            interpreter,
            self._events,
            threads=threads,
            measured=measured,
            huge_pages=huge_pages,
            handlers=handlers,
        )

    @cached_property
    def introduction(self) -> Mapping[str, Any]:
        """The worker's report after its start; see `gradwatch.harness.endpoint.probe`.

        Raises:
            Died: It ended before that.
        """
        return self._answer(STARTING, " while starting")

    @property
    def facts(self) -> Mapping[str, Any]:
        """The same report, of a worker that can run something.

        Raises:
            Absent: None of its framework's backends can be imported.
        """
        if why := import_error(self.introduction):
            self.close()
            raise Absent(why)
        return self.introduction

    def cpu_seconds(self) -> float:
        """What the kernel accounts to all threads of the worker; 0 where unknown."""
        if sys.platform != "linux":
            return 0.0
        return time.clock_gettime(~self._worker.process.pid << 3 | _ALL_THREADS)

    def waited_seconds(self) -> dict[tuple[int, int], float]:
        """How long each thread of the worker, and of this process, waited for a core.

        The kernel accounts it; nothing is known where there is no Linux.
        """
        waited = dict[tuple[int, int], float]()
        for process in (self._worker.process.pid, os.getpid()):
            for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # the thread has ended
                    nanoseconds = file.read_text().split()[1]
                    waited[process, int(file.parent.name)] = int(nanoseconds) / 1e9
        return waited

    def reply(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """The answer to a request, of any kind; the timeout includes a "budget" in it.

        Raises:
            Died: The worker died, or took too long.
            Absent: Its framework is missing.
        """
        self.facts  # noqa: B018  # its first answer, which is to none of these
        self._worker.send(request, payload)
        return self._answer(PATIENCE + payload.get("budget", 0.0))

    def ask(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """The answer to a request; an error in the worker is raised here.

        Raises:
            Died: As above, or the answer is an error.
            Absent: As above, or the device is missing.
        """
        return _result(self.reply(request, **payload))

    def _answer(self, seconds: float, when: str = "") -> Mapping[str, Any]:
        end = time.monotonic() + seconds
        while (event := self._heard(end)) is None:
            if time.monotonic() > end:
                self.ended = True
                self.close()
                raise Died(f"no answer in {seconds:g} s")
        reply = event.reply
        if reply is None:
            self.ended = True
            raise Died(f"{self._worker.end()}{when} {self._worker.where()}".strip())
        return reply

    def _heard(self, end: float) -> Event | None:
        """The next answer, or None after `LOOK`; sooner, at `end`."""
        event = None
        with contextlib.suppress(Empty):
            left = max(0.0, end - time.monotonic())
            event = self._events.get(timeout=min(LOOK, left))
        if time.monotonic() - self._called >= LOOK:
            self._called = time.monotonic()
            self._waiting()
        return event

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def _result(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """An answer that is no error."""
    if reply["kind"] != "result":
        kind = Absent if reply["kind"] == "missing" else Died
        raise kind(str(reply["message"]))
    return reply


def probe(
    interpreters: Iterable[Interpreter], *, threads: int = 1
) -> dict[str, Mapping[str, Any]]:
    """The reports of interpreters, by framework; see `harness.endpoint.probe`.

    All start at the same time. The "kind" of one that dies is "error".
    """
    with contextlib.ExitStack() as stack:
        started = {one.framework: _started(one, threads, stack) for one in interpreters}
        return {name: _introduced(line) for name, line in started.items()}


def _started(
    interpreter: Interpreter, threads: int, stack: contextlib.ExitStack
) -> Line | Died:
    try:
        line = Line(interpreter, threads=threads, handlers=())
    except Died as reason:
        return reason
    return stack.enter_context(contextlib.closing(line))


def _introduced(line: Line | Died) -> Mapping[str, Any]:
    try:
        if isinstance(line, Line):
            return line.introduction
    except Died as reason:
        line = reason
    return {"kind": "error", "message": str(line)}
