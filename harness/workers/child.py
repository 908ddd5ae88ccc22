"""A process of our own that runs pages and formulas: a job, and the pipe to it.

An op page may exit, hang, crash or raise at any place. So a job says where it is before
it runs any code of a page, and hands over each result at once. Whatever ends it costs
the op that it was at; a fresh child goes on with the ops that are left.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gradwatch.harness.project import documents
from gradwatch.harness.project.verdicts import Verdict
from gradwatch.harness.workers.arrays import legible
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.pages import PageEnded
from gradwatch.harness.workers.process import Process

ENDING = 5.0  # seconds for an idle child to end its workers
#: Seconds of silence while code of a page runs. The slowest reference of ours takes one
#: at the largest size; where the silence is a worker's, which has a deadline of its
#: own, `Link.alive` is called.
PATIENCE = 60.0

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1")}

BLAMED = "the page or its formula"

T = TypeVar("T")
Job = Callable[[bytes, "Link"], None]


class At(Struct, tag=True):
    """The op whose code runs next, or none; silence may last `patience` seconds."""

    op: str = ""
    case: str = ""
    patience: float = 0.0


class Failed(Struct, tag=True):
    """An op that could not be judged: "error", "crash" or "timeout", and why."""

    op: str
    case: str
    verdict: Verdict
    message: str


#: Bytes are what a job hands over, packed; None says that the request is answered.
_Message = At | Failed | bytes | None
_received: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class Link:
    """The child's side: where it is, what it has found, and what it keeps.

    Code of a page may be silent for `patience` seconds.
    """

    patience = PATIENCE

    def __init__(self, connection: Connection, stack: contextlib.ExitStack) -> None:
        self._connection, self._stack = connection, stack
        self._places = [At()]
        self._kept: dict[str, Any] = {}

    def kept(self, kind: Callable[..., Any], **options: Any) -> Any:
        """A context manager that is entered once, and left when the child ends."""
        key = repr((kind, options))
        if key not in self._kept:
            self._kept[key] = self._stack.enter_context(kind(**options))
        return self._kept[key]

    @contextlib.contextmanager
    def running(self, op: str, case: str = "") -> Iterator[None]:
        """Code of a page runs in this block; it is ended after too much silence."""
        self._places.append(At(op, case, self.patience))
        self.alive()
        try:
            yield
        finally:
            self._places.pop()
            self.alive()

    @contextlib.contextmanager
    def at(self, op: str, case: str = "") -> Iterator[None]:
        """The same; whatever the page raises fails the op alone."""
        with self.running(op, case):
            try:
                yield
            except PageEnded as how:
                why = f"{BLAMED} ended the process: {how}"
                self.send(Failed(op, case, "crash", why))
            except BaseException as error:  # noqa: BLE001  # a page may raise SystemExit
                self.send(Failed(op, case, "error", legible(in_short(error))))

    def moved(self, case: str) -> None:
        """Say that its code has come to another case."""
        self._places[-1].case = case
        self.alive()

    def alive(self) -> None:
        """Say that the code of the page goes on."""
        self.send(self._places[-1])

    def tell(self, result: Any) -> None:
        """Hand a result over."""
        self.send(documents.packed(result))

    def send(self, message: _Message) -> None:
        """Send a message; without anybody who listens there is nothing left to do."""
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(message))
        except OSError:
            os._exit(1)


def serve(number: int, module: str, name: str) -> None:
    """Child entry point: answer requests from descriptor `number`."""
    os.set_inheritable(number, False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # see `Child.interrupt`
    job: Job = getattr(importlib.import_module(module), name)
    connection, over = Connection(number), (EOFError, OSError, KeyboardInterrupt)
    with contextlib.suppress(*over), contextlib.ExitStack() as stack:
        link = Link(connection, stack)
        while True:
            request = connection.recv_bytes()
            try:
                job(request, link)
            except Exception as error:  # noqa: BLE001  # a page can spoil anything
                link.send(Failed("", "", "crash", legible(in_short(error))))
                os._exit(1)
            link.send(None)


class Child:
    """The command's side of a job, a function of a module; use it in `with`.

    `blamed` is what ends it, in messages. `options` are those of `Process`: by default
    it has one thread (the workers beside it take the other cores, and OpenBLAS's would
    wait in a loop), and says nothing.
    """

    def __init__(self, job: Job, *, blamed: str = BLAMED, **options: Any) -> None:
        self._job, self._options = job, {"variables": _ONE_THREAD, **options}
        self._blamed = blamed
        self._process: Process | None = None
        self._busy = False

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()

    def run(
        self, ops: Sequence[str], request: Callable[[Sequence[str]], Any], kind: type[T]
    ) -> Iterator[T | Failed]:
        """What the job finds, and the ops that failed.

        A fresh child is asked for whatever is left when one has ended.

        Args:
            ops: What is asked for.
            request: Makes the request for those that are left of them.
            kind: The type of the results.
        """
        left = list(ops)
        while left:
            self.ask(request(left))
            failed = yield from self.answers(kind)
            if failed is None:
                return
            if failed.op in left:
                left.remove(failed.op)
                yield failed
            elif len(left) == 1:
                yield Failed(left[0], "", failed.verdict, failed.message)
                return
            else:  # one of them spoils the process for the others
                for op in left:
                    yield from self.run([op], request, kind)
                    self._end()
                return

    def ask(self, request: Any) -> None:
        """Send a request; errors surface when the answer is read."""
        with contextlib.suppress(OSError):
            self._ready().connection.send_bytes(documents.packed(request))

    def answers(self, kind: type[T]) -> Generator[T | Failed, None, Failed | None]:
        """What the child answers; returns what ended it, or None."""
        at, results = At(), msgspec.msgpack.Decoder(kind)
        try:
            child = self._ready()
            while (message := _received.decode(child.heard(at.patience))) is not None:
                if isinstance(message, At):
                    at = message
                elif isinstance(message, bytes):
                    yield results.decode(message)
                elif message.op:
                    yield message
                else:
                    self._end()
                    return message
            self._busy = False
            return None
        except TimeoutError:
            self._end()
            why = f"no answer in {at.patience:g} s from {self._blamed}"
            return Failed(at.op, at.case, "timeout", why)
        except (EOFError, OSError, msgspec.MsgspecError):
            why = f"{self._blamed} ended the process: {self._end(ENDING)}"
            return Failed(at.op, at.case, "crash", why)

    def answer(self, kind: type[T]) -> T | Failed:
        """The one result of a request, or what came in its place."""
        answers, found = self.answers(kind), list[T | Failed]()
        while True:
            try:
                found.append(next(answers))
            except StopIteration as end:
                return end.value or found[-1]

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the child, which goes on to answer."""
        if self._process is not None:
            self._process.process.terminate()

    def _ready(self) -> Process:
        """A child that waits for a request."""
        if self._process is None:
            module, name = self._job.__module__, self._job.__name__
            call = __name__, serve.__name__, module, name
            self._process = Process(*call, **self._options)
        self._busy = True
        return self._process

    def _end(self, patience: float = 0.0) -> str:
        """End the child, and with it its workers; how it ended if it had by then."""
        if self._process is None:
            return ""
        child, self._process = self._process, None
        child.connection.close()
        how = child.end(patience or (0.5 if self._busy else ENDING))
        where = child.where()
        child.close()
        return f"{how} {where}".strip()
