"""The client of one worker: it asks one thing at a time and waits for the answer.

Timing, comparisons, the history and the doctor use it. harness/workers/pool.py has many
tasks under way to many workers instead; both speak to the same `Worker`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from harness.project.paths import ROOT
from harness.workers.interpreters import Interpreter
from harness.workers.process import STARTING, Died, Event, Worker, import_error

PATIENCE = 120.0  # seconds for one answer: preparing the largest size takes a few


class Absent(Died):
    """A framework or a device that is not here."""


class Line:
    """A worker that is asked one thing at a time; its start is not waited for.

    Raises:
        Died: It cannot be started.
        Absent: Its interpreter is not here.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        *,
        threads: int = 1,
        measured: Path = ROOT,
        huge_pages: bool = False,
    ) -> None:
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
    def introduction(self) -> Mapping[str, Any]:
        """What it says of itself when it has started; see `harness.endpoint.probe`.

        Raises:
            Died: It ended meanwhile.
        """
        return self._answer(STARTING, " while starting")

    @property
    def facts(self) -> Mapping[str, Any]:
        """The same of a worker that is of use.

        Raises:
            Absent: None of its framework's backends can be imported.
        """
        if why := import_error(self.introduction):
            self.close()
            raise Absent(why)
        return self.introduction

    def reply(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """Its answer to a request, of whatever kind; a "budget" in it is waited for.

        Raises:
            Died: The request was its end, or took too long.
            Absent: Its framework is not here.
        """
        self.facts  # noqa: B018  # its first answer, which is to none of these
        self._worker.send(request, payload)
        return self._answer(PATIENCE + payload.get("budget", 0.0))

    def ask(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """The same, where an error there is an error here.

        Raises:
            Died: As above, or the answer is an error.
            Absent: As above, or the device is not here.
        """
        reply = self.reply(request, **payload)
        if reply["kind"] != "result":
            kind = Absent if reply["kind"] == "missing" else Died
            raise kind(str(reply["message"]))
        return reply

    def _answer(self, seconds: float, when: str = "") -> Mapping[str, Any]:
        try:
            reply = self._events.get(timeout=seconds).reply
        except Empty:
            self.close()
            raise Died(f"no answer in {seconds:g} s") from None
        if reply is None:
            raise Died(f"{self._worker.end()}{when} {self._worker.where()}".strip())
        return reply

    def close(self) -> None:
        """End the worker."""
        self._worker.close()


def probe(
    interpreters: Iterable[Interpreter], *, threads: int = 1
) -> dict[str, Mapping[str, Any]]:
    """What interpreters say of themselves, by framework; see `harness.endpoint.probe`.

    All start at the same time. One that dies has "error" for its "kind".
    """
    with contextlib.ExitStack() as stack:
        started = {one.framework: _started(one, threads, stack) for one in interpreters}
        return {name: _introduced(line) for name, line in started.items()}


def _started(
    interpreter: Interpreter, threads: int, stack: contextlib.ExitStack
) -> Line | Died:
    try:
        line = Line(interpreter, threads=threads)
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
