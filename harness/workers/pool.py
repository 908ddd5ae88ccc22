"""Runs many tasks on long-lived workers.

    for outcome in sweep(tasks, jobs=2, timeout=60.0):
        ...

If a worker crashes or hangs, only the current task is lost: this becomes its outcome,
the worker is replaced and the sweep goes on. A worker gets several tasks at a time, so
that it does not have to wait for the next one.
"""

from __future__ import annotations

import math
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from gradwatch.harness.project.compiling import compiles
from gradwatch.harness.workers.lane import LOOK, Lane
from gradwatch.harness.workers.messages import ENDED, Outcome, Task
from gradwatch.harness.workers.process import (
    Died,
    Event,
    Worker,
    ended,
    import_error,
    text,
    where,
)
from gradwatch.harness.workers.pythons import interpreters
from gradwatch.harness.workers.pythons.interpreters import Interpreter
from gradwatch.impls.catalogue import backend_names, framework_of, known

__all__ = ["Fleet", "Outcome", "Task", "sweep"]

TIMEOUT = 60.0  # seconds for one task: a hundred times what our longest one needs

#: Seconds of work that justify another worker: importing torch takes that long.
WORTH = 2.0
#: About what it takes to compile an op on a backend in a precision, and to run any task
#: and judge it, in seconds of two cores of 2.8 GHz.
COMPILED, RUN = 0.4, 0.003
#: About what it takes to import a framework, and to run a task without judging it, in
#: seconds of one core. `OTHER` is for those that are not named.
IMPORTED, OTHER, ANSWERED = {"numpy": 0.1, "autograd": 0.2, "torch": 2.0}, 1.0, 0.001
#: Frameworks whose threads hand each instruction to one another and poll meanwhile. On
#: one core, in short slices, they switch instead: OneFlow takes a third to a half of
#: the CPU time, and leaves a core.
POLLING = frozenset({"oneflow"})
#: Frameworks that crash again and again: 28 tasks of ours end OneFlow. Its libraries,
#: which take more than half of its start, are loaded once; see `endpoint.work`. In a
#: copied process it computes in the calling thread (its core/vm/virtual_machine.cpp)
#: with the same kernels; all bits are the same, and a crash names the page's line. It
#: refuses CUDA there: where there is a GPU nothing is copied.
COPIED = frozenset({"oneflow"})
#: Crashes after which the next worker of another framework is started before it is
#: needed: importing one takes more than a second.
FRAGILE = 2
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

    `programs` is a folder in which JAX keeps what it compiles, and `copied` are the
    frameworks whose workers survive a crash; see `Worker`.
    `facts` holds what the first worker of each framework reported: versions, devices.
    `waiting` is called every second in which no worker answers; each has a deadline.
    """

    def __init__(
        self,
        *,
        jobs: int = 1,
        threads: int = 1,
        programs: str = "",
        copied: Collection[str] = COPIED,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if jobs < 1:
            raise ValueError(f"at least one job, not {jobs}")
        self.jobs, self.threads, self.waiting = jobs, threads, waiting
        self._programs, self._copied = programs, copied
        self.facts: dict[str, Mapping[str, Any]] = {}
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._interpreters: dict[str, Interpreter] = {}
        self._lanes: list[Lane] = []
        self._failed_starts: dict[str, int] = {}
        self._crashes: Counter[str] = Counter()
        self._longest: Collection[str] | None = None
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
        self._waiting, self._longest = _by_framework(tasks), None
        try:
            yield from self._without_interpreter()
            while any(self._waiting.values()) or any(x.flying for x in self._lanes):
                yield from self._staff()
                for lane in self._lanes:
                    yield from self._feed(lane, timeout)
                yield from self._attend(timeout)
        finally:
            for lane in [lane for lane in self._lanes if lane.flying]:
                self._drop(lane)  # the caller stopped: its answers are not needed
            self._waiting = {}

    def warm(self, backends: Collection[str], *, compiling_first: bool = False) -> None:
        """Start the first workers for these backends before their tasks are known.

        Those that take longest to import; what compiles is last, or first.
        """
        if self._lanes:
            return
        frameworks = dict.fromkeys(map(framework_of, backends))
        plain = {framework_of(name) for name in backends if not compiles(name)}
        self._find(frameworks)
        usable = sorted(
            (name for name in frameworks if not self._interpreters[name].why_missing),
            key=lambda n: ((n in plain) == compiling_first, -IMPORTED.get(n, OTHER)),
        )
        for framework in usable[: self.jobs]:
            list(self._start(framework))  # no task is lost yet

    def know(self, found: Iterable[Interpreter]) -> None:
        """Take interpreters as another process found them; they are not asked again."""
        for one in found:
            self._interpreters.setdefault(one.framework, one)

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
            yield from self._hire(framework)
        for framework in self._waiting:
            if self._lacks_reserve(framework):
                yield from self._start(framework, reserve=True)

    def _lacks_reserve(self, framework: str) -> bool:
        """Whether a worker of it may end before its work, and none follows it."""
        if self._crashes[framework] < FRAGILE or not self._waiting[framework]:
            return False
        staff = [lane for lane in self._lanes if lane.framework == framework]
        return any(x.ready for x in staff) and not any(x.reserve for x in staff)

    def _understaffed(self) -> str:
        """The framework that most needs another worker and can have one, or "".

        Of those without one, that which takes longest, by what it compiles or else to
        import it and to answer its tasks. Where these are many, a sample comes last:
        trials are judged meanwhile, each when its last backend has answered.
        """
        busy = [x for x in self._lanes if not (x.reserve or self._is_idle(x))]
        needs = {
            name: self._need(name)
            for name, tasks in self._waiting.items()
            if tasks and len(busy) < self.jobs
        }
        best = max(needs, key=lambda name: (needs[name], *self._size(name)), default="")
        return best if needs.get(best, 0.0) >= WORTH else ""

    def _size(self, framework: str) -> tuple[bool, float]:
        """How much there is to do."""
        if self._longest is None:
            self._longest = _longest(self._waiting)
        seconds = ANSWERED * len(self._waiting[framework])
        return framework in self._longest, IMPORTED.get(framework, OTHER) + seconds

    def _need(self, framework: str) -> float:
        """Seconds of work for one more worker; infinite if there is no worker yet."""
        staff = [
            lane
            for lane in self._lanes
            if lane.framework == framework and not lane.reserve
        ]
        if not staff:
            return math.inf
        pace = max(lane.work() for lane in staff)
        return len(self._waiting[framework]) * pace / (1 + len(staff))

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

    def _hire(self, framework: str) -> Iterator[Outcome]:
        """One more worker that gets tasks: the reserve if there is one."""
        for lane in self._lanes:
            if lane.reserve and lane.framework == framework:
                lane.reserve = False
                return
        yield from self._start(framework)

    def _start(self, framework: str, *, reserve: bool = False) -> Iterator[Outcome]:
        interpreter, now = self._interpreters[framework], time.monotonic()
        try:
            worker = Worker(
                interpreter,
                self._events,
                threads=self.threads,
                programs=self._programs,
                copied=framework in self._copied and not interpreters.has_cuda(),
            )
        except Died as reason:
            yield from self._failed_to_start(framework, str(reason))
        else:
            lane = Lane(framework, interpreter, worker, now, reserve)
            lane.from_the_end = self._compiles_beside(framework)
            self._lanes.append(lane)

    def _compiles_beside(self, framework: str) -> bool:
        """Whether another worker of it compiles from the first task on.

        Tasks of an op follow one another: at the other end nothing is compiled twice.
        """
        waiting = self._waiting.get(framework)
        others = sum(lane.framework == framework for lane in self._lanes)
        return bool(waiting and compiles(waiting[0].backend) and others % 2)

    def _pin(self, lane: Lane) -> None:
        """Keep a worker that polls on one core, and two of them on different ones."""
        taken = Counter(other.core for other in self._lanes)
        cores = sorted(os.sched_getaffinity(0))
        first = os.getpid() % len(cores)  # not that of every other process of ours
        lane.core = min(cores[first:] + cores[:first], key=lambda core: taken[core])
        lane.worker.stay_on(lane.core)

    def _drop(self, lane: Lane) -> None:
        self._lanes.remove(lane)
        lane.worker.close()

    def _retire(self, lane: Lane) -> None:
        """End a worker, whose tasks go to another one."""
        self._waiting.get(lane.framework, deque()).extendleft(reversed(lane.flying))
        self._drop(lane)

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
        if not lane.ready or lane.overdue or lane.reserve:
            return
        if not (lane.flying or self._has_room):
            return
        if waiting and lane.core is None and lane.framework in POLLING:
            self._pin(lane)
        turn = -1 if lane.from_the_end else 0
        while waiting and lane.has_room_for(waiting[turn]):
            task = waiting[turn]
            del waiting[turn]
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
            self.waiting()
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
        elif event.reply["kind"] == ENDED:
            yield from self._replaced(lane, event.reply, event.at, timeout)
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

    def _replaced(
        self, lane: Lane, reply: Mapping[str, Any], at: float, timeout: float
    ) -> Iterator[Outcome]:
        """Handle the end of a worker's copy, which another one follows."""
        if lane.overdue:  # it is killed, and about to end as a whole
            return
        if not lane.flying or at < lane.since:  # none of its tasks did that
            self._retire(lane)
            return
        code, log = reply["code"], text(reply["log"])
        yield self._crash(lane, ended(code, log), log, timeout)

    def _ended(self, lane: Lane, timeout: float) -> Iterator[Outcome]:
        """Handle the end of a worker: only its current task ends with it."""
        end = lane.worker.end()
        if not lane.ready:
            self._drop(lane)
            yield from self._failed_to_start(lane.framework, f"{end} while starting")
            return
        log = lane.worker.tail()
        crash = [self._crash(lane, end, log, timeout)] if lane.flying else []
        self._crashes[lane.framework] += len(crash)
        self._retire(lane)
        yield from crash

    def _crash(self, lane: Lane, end: str, log: str, timeout: float) -> Outcome:
        """The outcome of a worker's current task, which has ended it."""
        late = f"no answer in {timeout:g} s" if lane.overdue else ""
        return Outcome(
            lane.lost(),
            "timeout" if late else "crash",
            message=f"{late or end} {where(log)}".strip(),
            trace=log,
            version=lane.version,
        )


def _by_framework(tasks: Iterable[Task]) -> dict[str, deque[Task]]:
    backends = backend_names()
    waiting: dict[str, deque[Task]] = {}
    for task in tasks:
        known("backend", task.backend, backends)
        waiting.setdefault(task.framework, deque()).append(task)
    return waiting


def _longest(waiting: Mapping[str, Collection[Task]]) -> Collection[str]:
    """Frameworks that compile, where that takes longer than all the others take."""
    compiled = {
        name: {
            (one.op, one.backend, one.problem.dtype)
            for one in tasks
            if compiles(one.backend)
        }
        for name, tasks in waiting.items()
    }
    every = sum(map(len, waiting.values()))
    return [
        name
        for name, some in compiled.items()
        if COMPILED * len(some) > RUN * (every - len(waiting[name]))
    ]
