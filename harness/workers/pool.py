"""Runs many tasks on long-lived workers.

    for outcome in sweep(tasks, jobs=2, timeout=60.0):
        ...

If a worker crashes or hangs, only the current task is lost: this becomes its outcome,
the worker is replaced and the sweep goes on. A worker gets several tasks at a time, so
that it does not have to wait for the next one.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.lane import LOOK, Lane
from gradwatch.harness.workers.messages import Outcome, Task
from gradwatch.harness.workers.pythons import interpreters
from gradwatch.harness.workers.pythons.interpreters import Interpreter
from gradwatch.harness.workers.worker import Died, Event, Worker, import_error
from gradwatch.impls.catalogue import backend_names, known

__all__ = ["Fleet", "Outcome", "Task", "sweep"]

TIMEOUT = 60.0  # seconds for one task: a hundred times what our longest one needs
#: Seconds of work that justify another worker: importing torch takes that long.
WORTH = 2.0
#: How often a framework's workers may fail to start in a row.
STARTS = 3


def sweep(
    tasks: Iterable[Task], *, jobs: int = 1, timeout: float = TIMEOUT, threads: int = 1
) -> Iterator[Outcome]:
    """Yield the outcomes of all tasks as they arrive; at most `jobs` workers run."""
    with Fleet(jobs=jobs, threads=threads) as fleet:
        yield from fleet.run(tasks, timeout=timeout)


class Fleet:
    """Workers that are kept from one run to the next; close it, or use it in `with`.

    `programs` is a folder in which JAX keeps what it compiles; see `Worker`.
    `facts` holds what the first worker of each framework reported: versions, devices.
    `waiting` is called every second or so of a run; each worker has a deadline.
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
        self.jobs, self.threads, self.waiting = jobs, threads, waiting
        self._programs = programs
        self.facts: dict[str, Mapping[str, Any]] = {}
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._interpreters: dict[str, Interpreter] = {}
        self._lanes: list[Lane] = []
        self._failed_starts: dict[str, int] = {}
        self._waiting: dict[str, deque[Task]] = {}

    def __enter__(self) -> Fleet:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        self._waiting, called = _by_framework(tasks), time.monotonic()
        try:
            yield from self._without_interpreter()
            while any(self._waiting.values()) or any(x.flying for x in self._lanes):
                yield from self._staff()
                for lane in self._lanes:
                    yield from self._feed(lane, timeout)
                yield from self._attend(timeout)
                if time.monotonic() - called >= LOOK:
                    called = time.monotonic()
                    self.waiting()
        finally:
            for lane in [lane for lane in self._lanes if lane.flying]:
                self._drop(lane)  # the caller stopped: its answers are not needed
            self._waiting = {}

    def _find(self, frameworks: Iterable[str]) -> None:
        unknown = [name for name in frameworks if name not in self._interpreters]
        self._interpreters.update(interpreters.interpreters_of(unknown))

    def _without_interpreter(self) -> Iterator[Outcome]:
        self._find(self._waiting)
        for framework in self._waiting:
            yield from self._give_up_if_missing(framework)

    def _give_up_if_missing(self, framework: str) -> Iterator[Outcome]:
        interpreter = self._interpreters[framework]
        waiting = self._waiting.get(framework, deque())
        while interpreter.why_missing and waiting:
            message = interpreter.explained
            yield Outcome(waiting.popleft(), "missing", message=message)

    # --- workers ------------------------------------------------------------------

    def _staff(self) -> Iterator[Outcome]:
        """Start workers where tasks wait for one, as many as there are jobs."""
        for lane in [x for x in self._lanes if x.ready and not x.flying]:
            its_turn = self._has_room and self._waiting.get(lane.framework)
            if its_turn and not lane.worker.alive:
                self._drop(lane)  # it died while idle: no task is lost
        while framework := self._understaffed():
            spare = self._spare()
            if spare and len(self._lanes) >= self.jobs:
                self._drop(spare)
            yield from self._start(framework)

    def _understaffed(self) -> str:
        """The framework that gets the next worker, or "".

        The first without one in the order of `_by_framework`; once each has its worker,
        the one with the most work for another.
        """
        if sum(not self._is_idle(lane) for lane in self._lanes) >= self.jobs:
            return ""
        waiting = [name for name, tasks in self._waiting.items() if tasks]
        staff = Counter(lane.framework for lane in self._lanes)
        if new := next((name for name in waiting if not staff[name]), ""):
            return new
        need = {name: self._seconds(name) / (1 + staff[name]) for name in waiting}
        most = max(need, key=need.__getitem__, default="")
        return most if need.get(most, 0.0) >= WORTH else ""

    def _seconds(self, framework: str) -> float:
        """The seconds that the waiting tasks of a framework take."""
        staff = (lane for lane in self._lanes if lane.framework == framework)
        return len(self._waiting[framework]) * max(lane.work() for lane in staff)

    @property
    def _has_room(self) -> bool:
        """Whether one more worker may get tasks."""
        return sum(bool(lane.flying) for lane in self._lanes) < self.jobs

    def _is_idle(self, lane: Lane) -> bool:
        return not lane.flying and not self._waiting.get(lane.framework)

    def _spare(self) -> Lane | None:
        """An idle worker that can be ended; one of each framework is kept.

        An idle worker needs only memory, but a new one would take seconds to import.
        """
        staff = Counter(lane.framework for lane in self._lanes)
        spare = (x for x in self._lanes if self._is_idle(x) and staff[x.framework] > 1)
        return next(spare, None)

    def _start(self, framework: str) -> Iterator[Outcome]:
        interpreter, now = self._interpreters[framework], time.monotonic()
        try:
            worker = Worker(
                interpreter,
                self._events,
                threads=self.threads,
                programs=self._programs,
            )
        except Died as reason:
            yield from self._failed_to_start(framework, str(reason))
        else:
            self._lanes.append(Lane(framework, interpreter, worker, now))

    def _drop(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        lane.worker.close()

    def _failed_to_start(self, framework: str, reason: str) -> Iterator[Outcome]:
        """Try again a few times; after that the framework counts as missing."""
        self._failed_starts[framework] = self._failed_starts.get(framework, 0) + 1
        if self._failed_starts[framework] >= STARTS:
            interpreter = interpreters.broken(self._interpreters[framework], reason)
            self._interpreters[framework] = interpreter
            yield from self._give_up_if_missing(framework)

    # --- tasks --------------------------------------------------------------------

    def _feed(self, lane: Lane, timeout: float) -> Iterator[Outcome]:
        """Send tasks until the worker has enough of them."""
        waiting = self._waiting.get(lane.framework)
        if not lane.ready or lane.overdue:
            return
        if not (lane.flying or self._has_room):
            return
        while waiting and lane.has_room_for(waiting[0]):
            task = waiting.popleft()
            try:
                payload = task.payload()
            except (TypeError, ValueError, LookupError) as error:
                yield Outcome(task, "error", message=str(error))
                continue
            lane.send(task, payload, timeout)

    def _attend(self, timeout: float) -> Iterator[Outcome]:
        """Wait for the next event or deadline, and handle it."""
        lane = min(self._lanes, key=lambda lane: lane.deadline(timeout), default=None)
        if lane is None:
            return
        try:
            event = self._next(lane.deadline(timeout) - time.monotonic())
        except Empty:
            yield from self._nothing_heard(lane, timeout)
            return
        lane = next((x for x in self._lanes if x.worker is event.worker), None)
        if lane is not None:
            yield from self._heard(lane, event, timeout)

    def _next(self, patience: float) -> Event:
        """The next event; one that has arrived is returned even after the deadline.

        Raises:
            Empty: There is none.
        """
        if patience <= 0:
            return self._events.get_nowait()
        return self._events.get(timeout=min(patience, LOOK))

    def _nothing_heard(self, lane: Lane, timeout: float) -> Iterator[Outcome]:
        """Handle that no event arrived in time; `lane` has the earliest deadline."""
        if time.monotonic() < lane.deadline(timeout):
            return
        if lane.overdue:  # killed, and yet its pipe stays open
            yield from self._ended(lane, timeout)
        else:
            lane.expire(lane.worker.interrupt)

    def _heard(self, lane: Lane, event: Event, timeout: float) -> Iterator[Outcome]:
        if event.reply is None:
            yield from self._ended(lane, timeout)
        elif not lane.ready:
            lane.facts = event.reply
            yield from self._introduced(lane)
        else:
            task = lane.answered(event.reply["seconds"], event.at)
            reply = dict(event.reply)
            if reply["kind"] == "missing" and lane.can_run(task):
                reply["kind"] = "error"  # a page says so, or has broken an import
            yield Outcome.of(task, reply, lane.version)

    def _introduced(self, lane: Lane) -> Iterator[Outcome]:
        """Handle the first answer of a worker, which says what the worker can run."""
        self._failed_starts.pop(lane.framework, None)
        self.facts[lane.framework] = lane.facts
        why = import_error(lane.facts)
        if why:
            self._interpreters[lane.framework] = interpreters.broken(
                lane.interpreter, why
            )
            self._drop(lane)
            yield from self._give_up_if_missing(lane.framework)

    def _ended(self, lane: Lane, timeout: float) -> Iterator[Outcome]:
        """Handle the end of a worker: only its current task ends with it."""
        end = lane.worker.end()
        if not lane.ready:
            self._drop(lane)
            yield from self._failed_to_start(lane.framework, f"{end} while starting")
            return
        crash = [self._crash(lane, end, timeout)] if lane.flying else []
        self._waiting.get(lane.framework, deque()).extendleft(reversed(lane.flying))
        self._drop(lane)
        yield from crash

    def _crash(self, lane: Lane, end: str, timeout: float) -> Outcome:
        """The outcome of a worker's current task, which has ended it."""
        late = f"no answer in {timeout:g} s" if lane.overdue else ""
        return Outcome(
            lane.lost(),
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
