"""A process of our own that runs pages and formulas, and the pipe to it.

An op page may exit, hang, crash or raise at any place. What loads pages and runs their
formulas is therefore a job in a child process. It says where it is before it runs any
code of a page, and hands over each result at once. Whatever ends it costs the op that
it was at; a fresh child goes on with the ops that are left.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import selectors
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import INSTALLED, PROJECT
from gradwatch.harness.workers.arrays import legible
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.lifetime import die_with_parent
from gradwatch.harness.workers.process import calling, ended, sigint_blocked

#: Ends of a child with no op to blame, after which each op gets a child of its own.
STARTS = 2
ENDING = 5.0  # seconds for an idle child to end its workers
#: Seconds of silence while code of a page runs. The slowest reference of ours takes one
#: at the largest size; where the silence is a worker's, which has a deadline of its
#: own, `Link.alive` is called.
PATIENCE = 60.0

#: The workers beside it take the other cores; OpenBLAS's threads would wait in a loop.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}

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
    verdict: str
    message: str


class Result(Struct, tag=True):
    """What a job hands over, packed."""

    content: bytes


class Done(Struct, tag=True):
    """The request is answered."""


_Message = At | Failed | Result | Done
_received = msgspec.msgpack.Decoder(list[_Message])


class Link:
    """The child's side: where it is, what it has found, and what it keeps."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._places = [At()]
        self._held: list[_Message] = []
        self._kept: dict[str, Any] = {}
        self._stack = contextlib.ExitStack()

    def kept(self, kind: Callable[..., Any], **options: Any) -> Any:
        """A context manager that is entered once, and left when the child ends."""
        key = repr((kind, options))
        if key not in self._kept:
            self._kept[key] = self._stack.enter_context(kind(**options))
        return self._kept[key]

    @contextlib.contextmanager
    def at(self, op: str, case: str = "", patience: float = PATIENCE) -> Iterator[None]:
        """Code of a page runs in this block; what it raises fails the op alone."""
        self._places.append(At(op, case, patience))
        self._send(self._places[-1])
        try:
            yield
        except BaseException as error:  # noqa: BLE001  # a page may raise SystemExit
            why = legible(in_short(error))
            self._send(Failed(op, case, "error", why))
        finally:
            self._places.pop()
            self._send(self._places[-1])

    def alive(self) -> None:
        """Say that the code of the page goes on."""
        self._send(self._places[-1])

    def tell(self, result: Any, *, leaving: bool = False) -> None:
        """Hand a result over, at once or, `leaving` a page, together with that news."""
        self._held.append(Result(documents.packed(result)))
        if not leaving:
            self._send()

    def _send(self, *messages: _Message) -> None:
        together, self._held = [*self._held, *messages], []
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(together))
        except OSError:  # nobody listens any longer
            os._exit(1)

    def serve(self, job: Job) -> None:
        """Answer requests until there are no more."""
        with self._stack, contextlib.suppress(EOFError, OSError):
            while True:
                request = self._connection.recv_bytes()
                try:
                    job(request, self)
                except Exception as error:  # noqa: BLE001  # a page can spoil anything
                    self._send(Failed("", "", "crash", legible(in_short(error))))
                    os._exit(1)
                self._send(Done())


def serve(number: int, module: str, name: str) -> None:
    """Be the child: what it is asked comes by the descriptor of that number."""
    os.set_inheritable(number, False)
    job: Job = getattr(importlib.import_module(module), name)
    Link(Connection(number)).serve(job)


class _Child(Protocol):
    """A process as `subprocess.Popen` shows it."""

    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class _Copy:
    """A copy of this process that runs a function and ends."""

    def __init__(self, run: Callable[[], None]) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=run)
        with warnings.catch_warnings():  # of Python 3.12: NumPy has threads, which wait
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: It has not ended.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("", timeout or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()


class Isolated:
    """The command's side of a job, a function of a module; use it in `with`."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._process: _Child | None = None
        self._connection: Connection | None = None
        self._selector = selectors.DefaultSelector()
        self._busy = False

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *raised: object) -> None:
        self._end()
        self._selector.close()

    def start(self, *, foreign: bool = False) -> None:
        """Start the child before there is anything to ask.

        It is a copy of this process, which need not import anything, where no other
        thread runs and no page comes from outside the project, that is `foreign`.
        """
        ours = not (foreign or PROJECT.table or INSTALLED)
        alone = sys.platform == "linux" and threading.active_count() == 1
        begin = self._copy if ours and alone else self._begin
        with contextlib.suppress(OSError):  # what prevents it shows at the first answer
            self._ready(begin)
            self._busy = False

    def run(
        self, ops: Sequence[str], request: Callable[[Sequence[str]], Any], kind: type[T]
    ) -> Iterator[T | Failed]:
        """What the job finds, and the ops that failed.

        The child is asked at once, and works while nothing is taken from the iterator.

        Args:
            ops: What is asked for.
            request: Makes the request for those that are left of them.
            kind: The type of the results.
        """
        if ops:
            self._ask(documents.packed(request(ops)))
        return self._found(list(ops), request, kind)

    def _found(
        self, left: list[str], request: Callable[[Sequence[str]], Any], kind: type[T]
    ) -> Iterator[T | Failed]:
        """Answers to what was asked; a fresh child is asked for whatever is left."""
        unblamed = 0
        while left:
            failed = yield from self._answers(kind)
            if failed is None:
                return
            unblamed += failed.op not in left
            if failed.op in left:
                left.remove(failed.op)
                yield failed
            elif unblamed == STARTS and len(left) == 1:
                yield Failed(left[0], "", failed.verdict, failed.message)
                return
            elif unblamed == STARTS:  # one of them spoils the process for the others
                for op in left:
                    yield from self.run([op], request, kind)
                    self._end()
                return
            if left:
                self._ask(documents.packed(request(left)))

    def _ask(self, request: bytes) -> None:
        """Send a request; whatever prevents it shows when the answer is read."""
        with contextlib.suppress(OSError):
            self._ready().send_bytes(request)

    def _answers(self, kind: type[T]) -> Generator[T | Failed, None, Failed | None]:
        """What the child answers; returns what ended it, or None."""
        at, results = At(), msgspec.msgpack.Decoder(kind)
        try:
            connection = self._ready()
            while True:
                if not self._selector.select(at.patience or None):
                    self._end()
                    why = f"no answer in {at.patience:g} s from the page or its formula"
                    return Failed(at.op, at.case, "timeout", why)
                for message in _received.decode(connection.recv_bytes()):
                    if isinstance(message, At):
                        at = message
                    elif isinstance(message, Failed) and not message.op:
                        self._end()
                        return message
                    elif isinstance(message, Failed):
                        yield message
                    elif isinstance(message, Result):
                        yield results.decode(message.content)
                    else:
                        self._busy = False
                        return None
        except (EOFError, OSError, msgspec.MsgspecError):
            why = f"the page or its formula ended the process: {self._end()}"
            return Failed(at.op, at.case, "crash", why)

    def _ready(self, begin: Callable[[Connection], _Child] | None = None) -> Connection:
        """The connection to a child that waits for a request."""
        if self._connection is None:
            self._end()
            self._connection, theirs = Pipe()
            self._selector.register(self._connection, selectors.EVENT_READ)
            with sigint_blocked(), theirs:
                self._process = (begin or self._begin)(theirs)
        self._busy = True
        return self._connection

    def _begin(self, theirs: Connection) -> _Child:
        number, module, name = theirs.fileno(), self._job.__module__, self._job.__name__
        return subprocess.Popen(
            [sys.executable, "-c", calling(__name__, "serve", number, module, name)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # it is for the command's results
            env=_ONE_THREAD | os.environ,
            pass_fds=[number],
        )

    def _copy(self, theirs: Connection) -> _Child:
        parent, ours = os.getpid(), self._connection

        def be() -> None:
            die_with_parent(parent)
            if ours is not None:
                ours.close()
            with open(os.devnull, "r+b", 0) as nothing:
                os.dup2(nothing.fileno(), 0)
                os.dup2(nothing.fileno(), 1)  # it is for the command's results
            Link(theirs).serve(self._job)

        return _Copy(be)

    def leave(self) -> None:
        """Let the child end, and with it its workers; nobody waits for it yet."""
        if self._connection is not None:
            self._selector.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _end(self) -> str:
        """End the child, and with it its workers; how it ended if it had by then."""
        self.leave()
        if self._process is None:
            return ""
        try:
            code = self._process.wait(0.5 if self._busy else ENDING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        self._process = None
        return ended(code)
