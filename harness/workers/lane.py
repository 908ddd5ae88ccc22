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
from gradwatch.harness.workers.worker import Worker

#: Tasks under way to a worker that has answered before, so that it need not wait.
MOST = 8
#: Bytes of arrays under way beside the first task. More would fill the buffer of a
#: socket, 208 KiB on Linux, and block while the worker is busy.
ROOM = 48 << 10
#: Seconds from a kill until a worker is given up: normally it ends at once.
DYING = 1.0


@dataclass
class Lane:
    """A worker with the tasks that were sent to it, oldest first, and when.

    began: when it got the first task of this run; infinite before that.
    """

    interpreter: Interpreter
    worker: Worker
    deadline: float  # of its start, its current task or its end; in monotonic seconds
    facts: Mapping[str, Any] = field(default_factory=dict)
    overdue: bool = False
    began: float = float("inf")
    answers: int = 0
    flying: deque[tuple[Task, float]] = field(default_factory=deque)

    @property
    def framework(self) -> str:
        """The framework that it runs."""
        return self.interpreter.framework

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
        if not self.answers or len(self.flying) >= MOST:
            return False
        return task.nbytes + sum(one.nbytes for one, _ in self.flying) <= ROOM

    def send(self, task: Task, payload: Mapping[str, Any], timeout: float) -> None:
        """Send a task; a worker that does not read a large one is ended in time."""
        now = time.monotonic()
        self.began = min(self.began, now)
        if not self.flying:
            self.deadline = now + timeout
        self.flying.append((task, now))
        if task.nbytes <= ROOM:
            self.worker.send(task.request, payload)
            return
        watch = threading.Timer(timeout, self.expire, [self.worker.kill])
        watch.start()
        try:
            self.worker.send(task.request, payload)
        finally:
            watch.cancel()

    def answered(self, at: float, timeout: float) -> Task:
        """Record an answer to the oldest task, and return this task.

        The next task's time begins now, or when it was sent: an answer may be read long
        after it came, and more tasks have been sent only then.
        """
        self.answers += 1
        task, _ = self.flying.popleft()
        if not self.overdue:
            begins = max(at, self.flying[0][1]) if self.flying else float("inf")
            self.deadline = begins + timeout
        return task

    def expire(self, end: Callable[[], None]) -> None:
        """End the worker, whose task has taken too long."""
        self.overdue, self.deadline = True, time.monotonic() + DYING
        end()
