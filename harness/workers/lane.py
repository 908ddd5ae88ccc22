"""A worker of the pool with the tasks that are under way to it, and its deadline."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradwatch.harness.workers.messages import Task
from gradwatch.harness.workers.pythons.interpreters import Interpreter
from gradwatch.harness.workers.worker import STARTING, Worker

#: Work under way to a worker, in seconds and in tasks: many round trips of about 1 ms,
#: and little that another worker could have taken.
AHEAD = 0.05
MOST = 16
#: Bytes of arrays under way beside the first task. More would fill the buffer of a
#: socket, 208 KiB on Linux, and block while the worker is busy.
ROOM = 48 << 10
#: Seconds between two checks whether another worker is needed.
LOOK = 1.0


@dataclass
class Lane:
    """A worker with the tasks that were sent to it, oldest first."""

    framework: str
    interpreter: Interpreter
    worker: Worker
    since: float  # when it was last heard of, or given work after having none
    facts: Mapping[str, Any] = field(default_factory=dict)
    overdue: bool = False
    pace: float = 0.0  # seconds for a task, recently
    flying: deque[Task] = field(default_factory=deque)
    _sent: deque[float] = field(default_factory=deque)  # when each of them was

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
        return sum(one.nbytes for one in (*self.flying, task)) <= ROOM

    def send(self, task: Task, payload: Mapping[str, Any], timeout: float) -> None:
        """Send a task; a worker that does not read a large one is ended in time."""
        now = time.monotonic()
        self.since = self.since if self.flying else now
        self.flying.append(task)
        self._sent.append(now)
        if task.nbytes <= ROOM:
            self.worker.send(task.request, payload)
            return
        watch = threading.Timer(timeout, self.expire, [self.worker.kill])
        watch.start()
        try:
            self.worker.send(task.request, payload)
        finally:
            watch.cancel()

    def work(self) -> float:
        """Seconds for a task: the recent pace, or the current task's if it is slow."""
        waited = time.monotonic() - self.since if self.ready and self.flying else 0.0
        return max(self.pace, waited if waited >= LOOK else 0.0)

    def answered(self, seconds: float, at: float) -> Task:
        """Record an answer to the oldest task, and return this task.

        The next task's time begins now, or when it was sent: an answer may be read long
        after it came, and more tasks have been sent only then.
        """
        self._sent.popleft()
        if not self.overdue:
            self.since = max(at, self._sent[0]) if self._sent else at
        self.pace = (self.pace + seconds) / 2 if self.pace else seconds
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
