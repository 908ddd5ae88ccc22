"""Tasks for workers, and their outcomes; runs many of them on long-lived workers.

If a worker crashes or hangs, only the current task is lost, and the worker is replaced.
Each job is a thread with one worker at a time, of the first framework that no other job
has; where all are taken, of one that has more than `WORTH` tasks waiting.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.workers import interpreters
from gradwatch.harness.workers.fork import CHANGED
from gradwatch.harness.workers.interpreters import Interpreter
from gradwatch.harness.workers.lifetime import Died, Late
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import backend_names, framework_of, known
from gradwatch.impls.contract import Array, Result

if TYPE_CHECKING:
    from gradwatch.harness.judging.cases import Trial
    from gradwatch.harness.judging.question import Question

LARGEST = 2_000_000_000  # bytes: both sides hold a message several times
TIMEOUT = 60.0  # seconds for one task: a hundred times what our longest one needs
WORTH = 100  # tasks that justify another worker: they take as long as importing torch
UNREAD = 64  # outcomes in the queue: beyond these, workers wait for the judge


@dataclass(frozen=True)
class Task:
    """A trial for a backend on a device, "cpu" or "cuda".

    `request` is the name of a handler of `harness.endpoint`, which also gets `options`.
    """

    trial: Trial
    backend: str
    device: str = "cpu"
    request: str = "evaluate"
    options: Mapping[str, Any] = field(default_factory=dict)

    def payload(self) -> dict[str, Any]:
        """The request in arrays and builtin types.

        Raises:
            ValueError: The arrays are too large to be sent.
        """
        problem, trial, second = self.trial.problem, self.trial, dict[str, Any]()
        arrays = (*problem.inputs.values(), *problem.cotangents)
        nbytes = sum(array.nbytes for array in arrays if array is not None)
        if nbytes > LARGEST:
            raise ValueError(f"{nbytes} bytes of arrays: at most {LARGEST} fit")
        if problem.order != "vjp":
            second = {"order": problem.order, "tangents": dict(problem.tangents)}
        constant = {*problem.op.constants}
        constant |= {n for n, a in problem.inputs.items() if a.dtype.kind in "biu"}
        return {
            "op": trial.op,
            "backend": self.backend,
            "inputs": dict(problem.inputs),
            "layouts": {
                name: "contiguous" if name in constant else trial.layout
                for name in problem.inputs
            },
            "cotangents": [*problem.cotangents],
            "cotangent_layout": trial.cotangent_layout,
            "attributes": dict(problem.attributes),
            "aliases": dict(problem.aliases),
            "dtype": problem.dtype,
            "device": self.device,
            "options": {"stress": trial.stress, **self.options},
            **second,
        }


@dataclass(frozen=True)
class Outcome:
    """The outcome of a task.

    kind          result, unsupported (declared), error (an exception), crash, timeout,
                  or missing (no such framework or device here)
    result        the arrays, if kind is "result" and the request was "evaluate"
    message       one line, for every other kind
    faults        the caller's tensors, or the graph's saved ones, that were written to,
                  each with a message
    repeatable    False if a fresh run differs from the first in any bit but a NaN's
    others        gradients that differ from those of the first run, and how they were
                  computed: with another graph alive, another cotangent, a frozen input
    version       the framework's
    reply         the worker's whole reply to any other request
    """

    task: Task
    kind: str
    result: Result | None = None
    message: str = ""
    faults: Sequence[tuple[str, str]] = ()
    repeatable: bool = True
    others: Sequence[tuple[str, Mapping[str, Array | None]]] = ()
    version: str = ""
    reply: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Task, reply: Mapping[str, Any], version: str) -> Outcome:
        """Decode a worker's answer to a task."""
        given = {n: v for n, v in reply.items() if n in ("kind", "message")}
        if task.request != "evaluate" or reply["kind"] != "result":
            return cls(task, **given, version=version, reply=reply)
        parts = ("outputs", "gradients", "state", "dtypes")
        given["result"] = Result(**{name: reply[name] for name in parts})
        given |= {name: reply[name] for name in ("faults", "repeatable", "others")}
        return cls(task, **given, version=version)

    def judged(self, asked: Question) -> Iterator[Judgement]:
        """Yield the verdicts on all tensors, or one verdict if there is no result.

        `agree`, `time`, `compare` and the history all judge so: none of them times a
        gradient that another one calls wrong.
        """
        if self.result is None:
            yield Judgement("all", self.kind, message=self.message)
            return
        for name, message in self.faults:
            yield Judgement(name, "malformed", message=message)
        on_cpu, dtypes = self.task.device == "cpu", self.result.dtypes
        flushes = on_cpu and bool(traits_of(framework_of(self.task.backend)).flushes)
        yield from asked.judge(self.result.tensors, dtypes, flushes=flushes)
        for how, gradients in self.others:
            for j in asked.judge(gradients, dtypes, flushes=flushes):
                if not j.passes:
                    yield replace(j, message=f"{how}: {j.message}")


def why_unfit(verdicts: Iterable[tuple[str, str]]) -> str:
    """The reason why an implementation must not be timed; "" if it can be.

    Each tensor has a verdict, which has to pass, and a message.
    """
    why = "nothing was judged"
    for verdict, message in verdicts:
        if verdict not in PASSING or verdict == "unsupported":
            return f"{verdict}: {message}"
        why = ""
    return why


class Fleet(AbstractContextManager["Fleet"]):
    """Workers for many tasks; one of each framework is kept for the next run.

    It needs only memory, and a new one would take seconds to import. Use it in `with`.
    """

    def __init__(self, *, jobs: int = 1) -> None:
        self.jobs = jobs
        # Linux ends a worker with its starting thread: these live as long as the fleet.
        self._threads = ThreadPoolExecutor(jobs, "gradwatch-job")
        self._lock = threading.Lock()
        self._idle: dict[str, Worker] = {}
        self._busy: set[Worker] = set()
        self._interpreters: dict[str, Interpreter] = {}
        self._tasks: dict[str, deque[Task]] = {}
        self._taken = set[str]()  # frameworks that a job works for
        self._timeout, self._stopped = TIMEOUT, False
        self._jobs: list[Future[None]] = []
        self._outcomes: Queue[Outcome | None] = Queue(UNREAD)

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers."""
        self._stop()
        for worker in self._idle.values():
            worker.kill()  # kill all before waiting for the first
        while self._idle:
            self._idle.popitem()[1].close()
        self._threads.shutdown()

    def run(
        self, tasks: Iterable[Task], *, timeout: float = TIMEOUT
    ) -> Iterator[Outcome]:
        """Yield the outcomes of all tasks as they arrive; `timeout` is per task.

        Raises:
            gradwatch.impls.catalogue.UnknownName: A task names an unknown backend.
        """
        self._tasks, self._timeout = _by_framework(tasks), timeout
        for name in self._tasks.keys() - self._interpreters.keys():
            self._interpreters[name] = interpreters.interpreter_of(name)
        self._taken, self._stopped = set(), False
        try:
            for _ in range(self.jobs):
                self._jobs.append(self._threads.submit(self._work))
            for _ in range(self.jobs):  # each puts a None at its end
                yield from iter(self._outcomes.get, None)
            for job in self._jobs:
                job.result()
        finally:
            self._stop()

    def _stop(self) -> None:
        """End the run and kill busy workers, whose answers are not needed any more."""
        with self._lock:
            self._stopped = True
            for worker in self._busy:
                worker.kill()
        while not all(job.done() for job in self._jobs):
            with contextlib.suppress(Empty):
                self._outcomes.get(timeout=0.01)
        for worker in [*self._busy]:
            self._drop(worker)
        self._jobs, self._outcomes = [], Queue(UNREAD)

    # --- a job: one of the threads ------------------------------------------------

    def _work(self) -> None:
        """Run tasks of one framework after the other, then put None into the queue."""
        try:
            while framework := self._framework():
                try:
                    worker = self._worker(framework)
                except Died as reason:
                    self._failed_to_start(framework, reason)
                else:
                    self._feed(worker)
        finally:
            self._outcomes.put(None)

    def _framework(self) -> str:
        """The framework that this job works for next; "" if no task waits."""
        with self._lock:
            waiting = {n: len(tasks) for n, tasks in self._tasks.items() if tasks}
            new = [name for name in waiting if name not in self._taken]
            slow = [name for name, count in waiting.items() if count > WORTH]
            found = next(iter([] if self._stopped else [*new, *slow]), "")
            self._taken.add(found)
            return found

    def _worker(self, framework: str) -> Worker:
        """An idle worker or a new one, which has started."""
        with self._lock:
            worker = self._idle.pop(framework, None)
            if worker and worker.connection.poll(0):
                worker.close()  # it died while idle: no task is lost
                worker = None
            if worker is None:
                interpreter = self._interpreters[framework]
                worker = Worker(interpreter, timed=False)
            self._busy.add(worker)
            if self._stopped:
                worker.kill()
        try:
            worker.facts  # noqa: B018  # a worker that has sent them has started
        except Died:
            self._drop(worker)
            raise
        worker.limit(self._timeout)
        return worker

    def _drop(self, worker: Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
        worker.close()

    def _failed_to_start(self, framework: str, reason: Died) -> None:
        """Put the outcome "missing" for all tasks of a framework."""
        interpreter = self._interpreters[framework]
        if not interpreter.why_missing:
            interpreter = interpreters.broken(interpreter, str(reason))
            self._interpreters[framework] = interpreter
        while task := self._next(framework):
            self._outcomes.put(Outcome(task, "missing", message=interpreter.explained))

    def _next(self, framework: str) -> Task | None:
        """The next task of a framework, if one waits."""
        with self._lock:
            waiting = self._tasks[framework]
            return waiting.popleft() if waiting and not self._stopped else None

    def _feed(self, worker: Worker) -> None:
        """Have a worker run tasks, one by one, until none waits, or it ends."""
        name, answers = worker.framework, 0
        version = str(worker.facts.get("version", ""))
        while task := self._next(name):
            try:
                reply = worker.answer(task.request, task.payload(), self._timeout)
            except (TypeError, ValueError, LookupError) as error:
                self._outcomes.put(Outcome(task, "error", message=str(error)))
                continue
            except Died as reason:
                with self._lock:
                    self._taken.discard(name)
                    if changed := worker.process.poll() == CHANGED and answers:
                        self._tasks[name].appendleft(task)
                if not changed:  # only this task is lost
                    kind = "timeout" if isinstance(reason, Late) else "crash"
                    said = Outcome(task, kind, message=str(reason), version=version)
                    self._outcomes.put(said)
                self._drop(worker)
                return
            answers += 1
            about = worker.facts["backends"].get(task.backend, {"error": "unknown"})
            lacks = about["error"] or about["devices"].get(task.device)
            if reply["kind"] == "missing" and not lacks:
                reply["kind"] = "error"  # a page raised it, or has broken an import
            self._outcomes.put(Outcome.of(task, reply, version))
        with self._lock:
            self._busy.discard(worker)
            spare = self._idle.setdefault(name, worker)
        if spare is not worker:
            worker.close()


def _by_framework(tasks: Iterable[Task]) -> dict[str, deque[Task]]:
    """A queue for each framework, in the order in which they get workers.

    Compiling ones come first, as they take longest; crashing ones last.
    """
    backends = backend_names()
    waiting: dict[str, deque[Task]] = {}
    for task in tasks:
        known("backend", task.backend, backends)
        waiting.setdefault(framework_of(task.backend), deque()).append(task)
    first = {name: traits_of(tasks[0].backend) for name, tasks in waiting.items()}
    turns = sorted(first, key=lambda n: (first[n].crashes, not first[n].compiles))
    return {name: waiting[name] for name in turns}
