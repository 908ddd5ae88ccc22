"""Starts, reads and ends a Python process of our own at the other end of a pipe.

`Child` runs a job in such a process, where code of a page may exit, hang, crash or
raise at any place. So a job reports its op before it runs any, and sends each result at
once. If it ends, only that op is lost; a fresh process continues with the others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar

import msgspec
import psutil
from msgspec import Struct

from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import ROOT, START, place
from gradwatch.harness.project.verdicts import Verdict
from gradwatch.harness.workers.arrays import legible
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.lifetime import Died, Late, first_line, how_ended

DYING = 5.0  # seconds from a kill, or from the end of its pipe, to that of the process
#: Seconds between two checks whether a silent process is alive: one that a page has
#: forked may keep the pipe open.
LOOK = 1.0
_TAIL = 16384  # bytes of a log: more than a traceback of every thread takes

# faulthandler's
_FRAME = re.compile(r'most recent call first\):\n  File "(.+)", line (\d+) in (.+)')
_RAISED = re.compile(r"^Traceback .+\n(?: .*\n)+(\S.*)", re.MULTILINE)

#: Seconds of silence while code of a page runs. Our slowest reference takes one second
#: at the largest size; while a worker with a deadline of its own is silent,
#: `Link.alive` is called.
PATIENCE = 60.0

_ONE_THREAD = {"OPENBLAS_NUM_THREADS": os.environ.get("OPENBLAS_NUM_THREADS", "1")}

BLAMED = "the page or its formula"

T = TypeVar("T")
Job = Callable[[bytes, "Link"], None]


class Process(AbstractContextManager["Process"]):
    """A Python process that calls a function of ours with the number of its pipe.

    Linux ends it with the *thread* that started it. Ctrl-C never reaches it: its parent
    handles that.

    Args:
        call: The module and the name of the function, and arguments after the number.
        python: The interpreter.
        measured: The checkout whose `impls` it runs; all other code is this checkout's.
        environment: Its environment, in place of this one's.
        variables: Environment variables in addition.
        stdout: The target of its standard output; by default /dev/null.
        stdin: Its standard input; by default /dev/null, None for this process's own.
        logged: Whether its standard error goes into a file, for `tail` and `where`.
        traced: Whether a crash writes its place in the code into a file, for `where`.
        alone: Whether it gets a session of its own, which is killed with it.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        *call: Any,
        python: Path | str = sys.executable,
        measured: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        variables: Mapping[str, str] | None = None,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = subprocess.DEVNULL,
        logged: bool = False,
        traced: bool = False,
        alone: bool = False,
    ) -> None:
        self._alone, self._looked = alone, time.monotonic()
        self._open = contextlib.ExitStack()
        self.connection, theirs = Pipe()
        self._open.enter_context(self.connection)
        self._log = TemporaryFile() if logged or traced else None  # noqa: SIM115  # kept
        log = self._open.enter_context(self._log).fileno() if self._log else -1
        module, name, *arguments = call
        number = theirs.fileno()
        tracing = f"import faulthandler\nfaulthandler.enable({log})\n"
        code = (
            f"{first_line()}{tracing if traced else ''}"
            f"place = {place(measured)!r}\n{START}\n"
            f"from {module} import {name}\n{name}{(number, *arguments)!r}"
        )
        # New processes ignore Ctrl-C; one that arrives is delayed.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self.process = psutil.Popen(
                    [str(python), "-c", code],
                    stdin=stdin,
                    stdout=stdout,
                    stderr=log if logged else None,
                    env={**(environment or os.environ), **(variables or {})},
                    pass_fds=[number, *([log] if traced else ())],
                    start_new_session=alone,
                )
        except BaseException:
            self._open.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.process.poll() is None

    def heard(self, seconds: float, waiting: Callable[[], object] = int) -> bytes:
        """Return the next message; call `waiting` every second until then.

        Raises:
            Late: None came in so many seconds (0: no limit); the process is killed.
            Died: The process has ended; the message says how, and where.
        """
        end = time.monotonic() + seconds if seconds else float("inf")
        try:
            while True:
                left = end - time.monotonic()
                there = self.connection.poll(max(0.0, min(LOOK, left)))
                if time.monotonic() - self._looked >= LOOK:
                    self._looked = time.monotonic()
                    waiting()
                if there:
                    return self.connection.recv_bytes()
                if not self.alive and not self.connection.poll(0):
                    raise EOFError
                if left <= 0:
                    raise TimeoutError
        except (TimeoutError, BlockingIOError):  # the second: half a message came
            self.end(0)
            raise Late(f"no answer in {seconds:g} s") from None
        except (EOFError, OSError):
            raise Died(f"{self.end()} {self.where()}".strip()) from None

    def say(self, content: bytes) -> None:
        """Send bytes; if the process is dead, `heard` raises."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(content)

    def kill(self) -> None:
        """Kill the process and all its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self.process.kill()
        if self._alone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, patience: float = DYING) -> str:
        """Wait for the end; return how it ended: a signal, an exit status or an error.

        The process is killed if it has not ended after `patience` seconds.
        """
        for seconds in (patience, DYING):
            with contextlib.suppress(psutil.TimeoutExpired):
                code = int(self.process.wait(seconds))
                raised = _RAISED.findall(self.tail()) if code == 1 else ()
                return str(raised[-1]) if raised else how_ended(code)
            self.kill()
        return "did not end when it was killed"

    def where(self) -> str:
        """The last known position in its code, such as "in forward (dot.py:20)"."""
        for file, line, name in _FRAME.findall(self.tail())[-1:]:  # the main thread's
            return f"in {name} ({Path(file).name}:{line})"
        return ""

    def tail(self) -> str:
        """The end of its standard error, without characters that XML cannot contain."""
        if not self._log or self._log.closed:  # by a thread that gave up waiting
            return ""
        log = self._log.fileno()
        start = max(0, os.fstat(log).st_size - _TAIL)
        return legible(os.pread(log, _TAIL, start).decode(errors="replace"))

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its log."""
        self.kill()
        with contextlib.suppress(psutil.Error):
            self.process.wait(DYING)
        self._open.close()


# A job ----------------------------------------------------------------------------


class PageEnded(BaseException):
    """The process of a page has ended; the message says how."""


class At(Struct, tag=True):
    """The op whose code runs, or none; silence is limited while it is `running`."""

    op: str = ""
    case: str = ""
    running: bool = False


class Failed(Struct, tag=True):
    """An op that could not be judged: "error", "crash" or "timeout", and why."""

    op: str
    case: str
    verdict: Verdict
    message: str


#: Bytes are a packed result of a job; None says that the request is answered.
_Message = At | Failed | bytes | None
_received: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class Link:
    """The child's side of a job: sends its place and results, keeps its resources."""

    def __init__(self, connection: Connection, stack: contextlib.ExitStack) -> None:
        self._connection, self._stack = connection, stack
        self._places = [At()]
        self._kept: dict[str, Any] = {}

    def kept(self, kind: Callable[..., Any], **options: Any) -> Any:
        """Enter a context manager once, and leave it when the child ends."""
        key = repr((kind, options))
        if key not in self._kept:
            self._kept[key] = self._stack.enter_context(kind(**options))
        return self._kept[key]

    @contextlib.contextmanager
    def at(self, op: str, case: str = "", *, fails: bool = True) -> Iterator[None]:
        """Guard code of a page: the parent ends it after too long a silence.

        An exception of the page fails the op alone if it `fails`, else it is raised.
        """
        self._places.append(At(op, case, True))
        self.alive()
        try:
            yield
        except BaseException as error:  # a page may raise SystemExit
            if not fails:
                raise
            failed = Failed(op, case, "error", legible(in_short(error)))
            if isinstance(error, PageEnded):
                failed.verdict = "crash"
                failed.message = f"{BLAMED} ended the process: {error}"
            self.tell(failed)
        finally:
            self._places.pop()
            self.alive()

    def alive(self, case: str = "") -> None:
        """Report that the code of the page still runs, or has begun another case."""
        self._places[-1].case = case or self._places[-1].case
        self.tell(self._places[-1])

    def tell(self, found: Any) -> None:
        """Send a result, the place of the job, or a failure.

        End the process if the other end of the pipe is closed.
        """
        own = found is None or isinstance(found, (At, Failed))
        message: _Message = found if own else documents.packed(found)
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
                link.tell(Failed("", "", "crash", legible(in_short(error))))
                os._exit(1)
            link.tell(None)


class Child(AbstractContextManager["Child"]):
    """The command's side of a job, a function of a module; use it in `with`.

    `blamed` names the cause of its end in messages. `options` are those of `Process`:
    by default it has one thread (the workers beside it take the other cores, and
    OpenBLAS's would wait in a loop), and no output. Code of a page may be silent for
    `patience` seconds.
    """

    def __init__(self, job: Job, *, blamed: str = BLAMED, **options: Any) -> None:
        self._job, self._options = job, {"variables": _ONE_THREAD, **options}
        self._blamed = blamed
        self._process: Process | None = None
        self._busy, self.patience = False, PATIENCE

    def __exit__(self, *raised: object) -> None:
        self._end()

    def run(
        self, ops: Sequence[str], request: Callable[[Sequence[str]], Any], kind: type[T]
    ) -> Iterator[T | Failed]:
        """Yield the results of the job, of a type, and the ops that failed.

        When a child has ended, a fresh one gets the `request` for the remaining ops.
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
        self._ready().say(documents.packed(request))

    def answers(self, kind: type[T]) -> Generator[T | Failed, None, Failed | None]:
        """Yield the child's replies; return the failure that ended it, or None."""
        at, results = At(), msgspec.msgpack.Decoder(kind)
        try:
            child = self._ready()
            while True:
                said = child.heard(self.patience if at.running else 0)
                if (message := _received.decode(said)) is None:
                    self._busy = False
                    return None
                if isinstance(message, At):
                    at = message
                elif isinstance(message, bytes):
                    yield results.decode(message)
                elif message.op:
                    yield message
                else:
                    break
        except Late as late:
            why = f"{late} from {self._blamed}"
            message = Failed(at.op, at.case, "timeout", why)
        except (Died, msgspec.MsgspecError) as how:
            why = f"{self._blamed} ended the process: {how}"
            message = Failed(at.op, at.case, "crash", why)
        self._end()
        return message

    def answer(self, kind: type[T]) -> T | Failed:
        """The one result of a request, or the failure in its place."""
        answers, found = self.answers(kind), list[T | Failed]()
        while True:
            try:
                found.append(next(answers))
            except StopIteration as end:
                return end.value or found[-1]

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the child, which still sends its reply."""
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

    def _end(self) -> None:
        """End the child, and with it its workers."""
        if self._process is not None:
            child, self._process = self._process, None
            child.connection.close()
            child.end(0.5 if self._busy else DYING)
            child.close()
