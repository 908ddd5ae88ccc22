"""A worker of the pool with the tasks that are under way to it, and its deadline."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwatch.harness.workers.messages import Task
from gradwatch.harness.workers.process import STARTING, Worker
from gradwatch.harness.workers.pythons.interpreters import Interpreter

#: Work under way to a worker, in seconds and in tasks: many round trips of about 1 ms,
#: and little that another worker could have taken.
AHEAD = 0.05
MOST = 32
#: The part of a pipe's buffer that arrays under way may take: Linux counts the memory
#: of a message, up to 2.2 times its size and a KiB (socket(7), SO_SNDBUF). Writing more
#: blocks while the worker is busy.
PART = 1 / 3
#: Answers that say how long the others take: what compiles takes 0.5 s for the first.
FEW = 8
#: Seconds between two checks whether another worker is needed.
LOOK = 1.0


@dataclass
class Lane:
    """A worker with the tasks that were sent to it, oldest first.

    A reserve gets none until the worker that it replaces has crashed.
    """

    framework: str
    interpreter: Interpreter
    worker: Worker
    since: float  # when it was last heard of, or given work after having none
    reserve: bool = False
    from_the_end: bool = False  # it takes the last of the tasks that wait
    core: int | None = None  # on which it stays, if it polls
    facts: Mapping[str, Any] = field(default_factory=dict)
    overdue: bool = False
    pace: float = 0.0  # seconds for a task, recently
    answers: int = 0
    worked: float = 0.0  # seconds for all tasks that it has answered
    flying: deque[Task] = field(default_factory=deque)
    _sent: deque[float] = field(default_factory=deque)  # when each of them was

    @property
    def _room(self) -> float:
        """Bytes of arrays that may be under way beside the first task."""
        return PART * self.worker.buffer

    @property
    def version(self) -> str:
        """The framework's version, as the worker reports it."""
        return str(self.facts.get("version", ""))

    @property
    def ready(self) -> bool:
        """Whether it has answered for the first time."""
        return bool(self.facts)

    def can_run(self, task: Task) -> bool:
        """Whether the worker said at first that it has the backend and the device."""
        about = self.facts["backends"].get(task.backend, {"error": "unknown"})
        return not (about["error"] or about["devices"].get(task.device))

    def has_room_for(self, task: Task) -> bool:
        """Whether the worker can be sent a task before it has answered all others."""
        if not self.flying:
            return True
        most = min(MOST, 1 + int(AHEAD / self.pace)) if self.pace else 1
        if len(self.flying) >= most:
            return False
        return sum(one.nbytes for one in (*self.flying, task)) <= self._room

    def send(self, task: Task, payload: Mapping[str, Any], timeout: float) -> None:
        """Send a task; one that does not fit into the pipe may block, not for ever."""
        now = time.monotonic()
        self.since = self.since if self.flying else now
        self.flying.append(task)
        self._sent.append(now)
        if task.nbytes <= self._room:
            self.worker.send(task.request, payload)
            return
        watch = threading.Timer(timeout, self.expire, [self.worker.kill])
        watch.start()
        try:
            self.worker.send(task.request, payload)
        finally:
            watch.cancel()

    def work(self) -> float:
        """Seconds for a task, or the current one's time if longer.

        The mean or, where what came first took longer, the recent pace.
        """
        at_it = self.ready and self.flying
        waited = time.monotonic() - self.since if at_it else 0.0
        mean = self.worked / self.answers if self.answers >= FEW else 0.0
        return max(min(mean, self.pace), waited if waited >= LOOK else 0.0)

    def answered(self, seconds: float, at: float) -> Task:
        """Record an answer to the oldest task, and return this task.

        The next one's time begins now, or when it was sent: whoever takes the answers
        may come back to an old one long after it, and has only then sent more.
        """
        self._sent.popleft()
        if not self.overdue:
            self.since = max(at, self._sent[0]) if self._sent else at
        self.pace = (self.pace + seconds) / 2 if self.pace else seconds
        self.answers, self.worked = self.answers + 1, self.worked + seconds
        return self.flying.popleft()

    def lost(self) -> Task:
        """Record that the oldest task gets no answer, and return it."""
        self._sent.popleft()
        self.since = time.monotonic()
        return self.flying.popleft()

    def expire(self, end: Callable[[], None]) -> None:
        """End the worker, whose task has taken too long."""
        self.overdue, self.since = True, time.monotonic()
        end()

    def deadline(self, timeout: float) -> float:
        """The time at which the current task is overdue, in monotonic seconds."""
        if self.overdue:
            return self.since + LOOK  # a killed worker normally ends at once
        if not self.ready:
            return self.since + STARTING
        return self.since + timeout if self.flying else float("inf")
