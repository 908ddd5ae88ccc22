"""Runs many tasks on long-lived workers.

    for outcome in sweep(tasks, jobs=2, timeout=60.0):
        ...

If a worker crashes or hangs, only the current task is lost: this becomes its outcome,
the worker is replaced and the sweep goes on. Each framework gets one worker, in the
order of `_by_framework`; one that has been at work for `WORTH` seconds gets another
where there is a job for it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.messages import Outcome, Task
from gradwatch.harness.workers.pythons import interpreters
from gradwatch.harness.workers.pythons.interpreters import Interpreter
from gradwatch.harness.workers.worker import (
    STARTING,
    Died,
    Event,
    Worker,
    import_error,
)
from gradwatch.impls.catalogue import backend_names, known

__all__ = ["Fleet", "Outcome", "Task", "sweep"]

TIMEOUT = 60.0  # seconds for one task: a hundred times what our longest one needs
#: Seconds of work that justify another worker: importing torch takes that long.
WORTH = 2.0
#: How often a framework's workers may fail to start in a row.
STARTS = 3
#: Seconds between two looks at whether another worker is needed.
LOOK = 1.0

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

    facts, version: of the framework, as the worker reports at first; empty until then.
    began: when it got the first task of this run; infinite before that.
    """

    framework: str
    worker: Worker
    deadline: float  # of its start, its current task or its end; in monotonic seconds
    facts: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""
    overdue: bool = False
    began: float = float("inf")
    answers: int = 0
    flying: deque[tuple[Task, float]] = field(default_factory=deque)

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


def sweep(
    tasks: Iterable[Task], *, jobs: int = 1, timeout: float = TIMEOUT, threads: int = 1
) -> Iterator[Outcome]:
    """Yield the outcomes of all tasks as they arrive; at most `jobs` workers run."""
    with Fleet(jobs=jobs, threads=threads) as fleet:
        yield from fleet.run(tasks, timeout=timeout)


class Fleet:
    """Workers that are kept from one run to the next; close it, or use it in `with`.

    `programs` is a folder in which JAX keeps what it compiles; see `Worker`. `waiting`
    is called every second or so of a run; each worker has a deadline. `facts` holds
    what a worker of each framework reported: versions, devices.
    """

    def __init__(
        self,
        *,
        jobs: int = 1,
        threads: int = 1,
        programs: str = "",
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if jobs < 1:
            raise ValueError(f"at least one job, not {jobs}")
        self.jobs, self.waiting = jobs, waiting
        self._options: dict[str, Any] = {"threads": threads, "programs": programs}
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._interpreters: dict[str, Interpreter] = {}
        self._lanes: list[Lane] = []
        self._failed_starts = Counter[str]()
        self._waiting: dict[str, deque[Task]] = {}
        self._timeout = TIMEOUT
        self.facts: dict[str, Mapping[str, Any]] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        for lane in self._lanes:
            lane.worker.kill()  # kill all before waiting for the first
        while self._lanes:
            self._lanes.pop().worker.close()

    def run(
        self, tasks: Iterable[Task], *, timeout: float = TIMEOUT
    ) -> Iterator[Outcome]:
        """Yield the outcomes of all tasks as they arrive; `timeout` is per task.

        Raises:
            gradwatch.impls.catalogue.UnknownName: A task names an unknown backend.
            RuntimeError: Another run of this fleet has not finished.
        """
        if self._waiting:
            raise RuntimeError("the fleet is busy with another run: finish that first")
        self._waiting, self._timeout = _by_framework(tasks), timeout
        new = [name for name in self._waiting if name not in self._interpreters]
        self._interpreters |= interpreters.interpreters_of(new)
        called = time.monotonic()
        for lane in self._lanes:
            lane.began = float("inf")
        try:
            while any(self._waiting.values()) or any(x.flying for x in self._lanes):
                yield from self._give_up_missing()
                self._staff()
                for lane in self._lanes:
                    yield from self._feed(lane)
                yield from self._attend()
                if time.monotonic() - called >= LOOK:
                    called = time.monotonic()
                    self.waiting()
        finally:
            for lane in [lane for lane in self._lanes if lane.flying]:
                self._drop(lane)  # the caller stopped: its answers are not needed
            self._waiting = {}

    def _give_up_missing(self) -> Iterator[Outcome]:
        """The outcomes of tasks whose framework cannot be run here."""
        for framework, tasks in self._waiting.items():
            interpreter = self._interpreters[framework]
            while interpreter.why_missing and tasks:
                message = interpreter.explained
                yield Outcome(tasks.popleft(), "missing", message=message)

    # --- workers ------------------------------------------------------------------

    def _staff(self) -> None:
        """Start workers where tasks wait for one, as many as there are jobs.

        One worker of each framework is kept: idle it needs only memory, but a new one
        would take seconds to import.
        """
        for lane in [x for x in self._lanes if x.facts and not x.flying]:
            its_turn = self._has_room and self._waiting.get(lane.framework)
            if its_turn and not lane.worker.alive:
                self._drop(lane)  # it died while idle: no task is lost
        while framework := self._understaffed():
            staff = Counter(lane.framework for lane in self._lanes)
            spare = [
                x for x in self._lanes if self._is_idle(x) and staff[x.framework] > 1
            ]
            if spare and len(self._lanes) >= self.jobs:
                self._drop(spare[0])
            self._start(framework)

    def _understaffed(self) -> str:
        """The framework that gets the next worker, or ""."""
        if sum(not self._is_idle(lane) for lane in self._lanes) >= self.jobs:
            return ""
        long_ago = time.monotonic() - WORTH
        recent = {x.framework for x in self._lanes if x.began > long_ago}
        staffed = {x.framework for x in self._lanes}
        waiting = [
            name
            for name, tasks in self._waiting.items()
            if tasks and not self._interpreters[name].why_missing
        ]
        new = (name for name in waiting if name not in staffed)
        return next(new, next((name for name in waiting if name not in recent), ""))

    @property
    def _has_room(self) -> bool:
        """Whether one more worker may get tasks."""
        return sum(bool(lane.flying) for lane in self._lanes) < self.jobs

    def _is_idle(self, lane: Lane) -> bool:
        return not lane.flying and not self._waiting.get(lane.framework)

    def _start(self, framework: str) -> None:
        interpreter = self._interpreters[framework]
        try:
            worker = Worker(interpreter, self._events, **self._options)
        except Died as reason:
            self._failed_to_start(framework, str(reason))
        else:
            deadline = time.monotonic() + STARTING
            self._lanes.append(Lane(framework, worker, deadline))

    def _drop(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        lane.worker.close()

    def _failed_to_start(self, framework: str, reason: str) -> None:
        """Try again a few times; after that the framework counts as missing."""
        self._failed_starts[framework] += 1
        if self._failed_starts[framework] >= STARTS:
            self._break(framework, reason)

    def _break(self, framework: str, why: str) -> None:
        broken = interpreters.broken(self._interpreters[framework], why)
        self._interpreters[framework] = broken

    # --- tasks --------------------------------------------------------------------

    def _feed(self, lane: Lane) -> Iterator[Outcome]:
        """Send tasks until the worker has enough of them."""
        waiting = self._waiting.get(lane.framework)
        if not lane.facts or lane.overdue or not (lane.flying or self._has_room):
            return
        while waiting and lane.has_room_for(waiting[0]):
            task = waiting.popleft()
            try:
                payload = task.payload()
            except (TypeError, ValueError, LookupError) as error:
                yield Outcome(task, "error", message=str(error))
                continue
            lane.send(task, payload, self._timeout)

    def _attend(self) -> Iterator[Outcome]:
        """Wait for the next event or deadline, and handle it.

        An event that has arrived is handled even after the deadline.
        """
        lane = min(self._lanes, key=lambda lane: lane.deadline, default=None)
        if lane is None:
            return
        try:
            left = max(0.0, lane.deadline - time.monotonic())
            event = self._events.get(timeout=min(left, LOOK))
        except Empty:
            if time.monotonic() < lane.deadline:
                return
            if lane.overdue or not lane.facts:  # it was killed, or never answered
                yield from self._ended(lane)
            else:
                lane.expire(lane.worker.interrupt)
            return
        for one in [x for x in self._lanes if x.worker is event.worker]:
            yield from self._heard(one, event)

    def _heard(self, lane: Lane, event: Event) -> Iterator[Outcome]:
        if event.reply is None:
            yield from self._ended(lane)
        elif lane.facts:
            task, reply = lane.answered(event.at, self._timeout), dict(event.reply)
            if reply["kind"] == "missing" and lane.can_run(task):
                reply["kind"] = "error"  # a page says so, or has broken an import
            yield Outcome.of(task, reply, lane.version)
        else:  # its first answer says what it can run
            lane.facts, lane.deadline = event.reply, float("inf")
            lane.version = str(lane.facts.get("version", ""))
            self.facts[lane.framework] = lane.facts
            del self._failed_starts[lane.framework]
            if why := import_error(lane.facts):
                self._break(lane.framework, why)
                self._drop(lane)

    def _ended(self, lane: Lane) -> Iterator[Outcome]:
        """Handle the end of a worker: only its current task ends with it."""
        end, lost = lane.worker.end(), list[Outcome]()
        if not lane.facts:
            self._failed_to_start(lane.framework, f"{end} while starting")
        elif lane.worker.changed and lane.answers:
            self._waiting[lane.framework].extendleft(
                t for t, _ in reversed(lane.flying)
            )
        elif lane.flying:
            task, *others = [task for task, _ in lane.flying]
            lost.append(self._crash(lane, task, end))
            self._waiting[lane.framework].extendleft(reversed(others))
        self._drop(lane)
        yield from lost

    def _crash(self, lane: Lane, task: Task, end: str) -> Outcome:
        """The outcome of a worker's current task, which has ended it."""
        late = f"no answer in {self._timeout:g} s" if lane.overdue else ""
        return Outcome(
            task,
            "timeout" if late else "crash",
            message=f"{late or end} {lane.worker.where()}".strip(),
            trace=lane.worker.tail(),
            version=lane.version,
        )


def _by_framework(tasks: Iterable[Task]) -> dict[str, deque[Task]]:
    """A queue for each framework, in the order in which they get workers.

    Those that compile come first, since that takes longest. Those that crash again and
    again come last: their restarts delay nobody else.
    """
    backends = backend_names()
    waiting: dict[str, deque[Task]] = {}
    for task in tasks:
        known("backend", task.backend, backends)
        waiting.setdefault(task.framework, deque()).append(task)

    def turn(framework: str) -> tuple[bool, bool]:
        first = traits_of(waiting[framework][0].backend)
        return first.crashes, not first.compiles

    return {name: waiting[name] for name in sorted(waiting, key=turn)}
