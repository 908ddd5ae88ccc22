"""One live worker: a framework's interpreter at the other end of an execnet channel.

The channel's receiver thread puts what arrives into a queue of events, so that one
thread can attend to several workers. A worker is ended by killing it: it keeps nothing
that would be lost, and a hung one would not listen.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import execnet
import psutil

from harness.project.imports import START, place
from harness.project.paths import ROOT
from harness.workers.allocator import HUGE_PAGES_ENVIRONMENT, MALLOC_ENVIRONMENT
from harness.workers.arrays import legible
from harness.workers.interpreters import Interpreter

STARTING = 120.0  # seconds for importing a framework from a cold disk, under load
DYING = 5.0  # seconds from a kill to the end of the process
_JOINING = 1.0  # seconds for the thread that listens to a worker to see its end
_SAYING = 0.2  # seconds for a hung worker to say where it is

_ENDPOINT = f"{__package__.rpartition('.')[0]}.endpoint"

_BOOTSTRAP = f"""
import os
channel.send(os.getpid())
place, path = channel.receive()
log = os.open(path, os.O_WRONLY | os.O_APPEND)
os.unlink(path)
os.dup2(log, 2)
os.close(log)
{START}
from {_ENDPOINT} import serve
serve(channel)
"""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_TAIL = 16384  # bytes of standard error: more than a traceback of every thread takes
_FRAME = re.compile(  # faulthandler's
    r"most recent call first\):\n"
    r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)'
)


class Died(Exception):
    """A worker that ended, or did not start; the message says how."""


@dataclass(frozen=True)
class Event:
    """An answer of a worker, or its end where there is none; `at` is monotonic."""

    worker: Worker
    reply: Mapping[str, Any] | None
    at: float


class Worker:
    """A process that answers the requests of `harness.endpoint` in their order.

    Its first answer is that of `probe`. Linux ends it with the *thread* that made it.
    `measured` is the checkout whose `impls` it runs; all else is this one's. With
    `huge_pages` its heap is on such, as far as the system has them.

    Raises:
        Died: It did not start.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        events: SimpleQueue[Event],
        *,
        threads: int = 1,
        measured: Path = ROOT,
        huge_pages: bool = False,
    ) -> None:
        self._log, self._path = tempfile.mkstemp(prefix="gradwatch-")
        self._group = execnet.Group()
        self._process: psutil.Process | None = None
        try:
            self._start(_spec(interpreter, threads, huge_pages), measured)
            self.send("probe", {"framework": interpreter.framework})
        except (
            OSError,
            EOFError,
            AssertionError,
            psutil.Error,
            execnet.RemoteError,
        ) as error:
            self.close()
            why = f"{interpreter.shown} runs, but not as a worker ({error!r})"
            raise Died(why) from error
        except BaseException:
            self.close()
            raise
        self._channel.setcallback(
            lambda reply: events.put(Event(self, reply, time.monotonic())),
            endmarker=None,
        )

    def _start(self, spec: str, measured: Path) -> None:
        with _sigint_blocked(), _nothing_left():
            gateway = self._group.makegateway(spec)
        self._channel = gateway.remote_exec(_BOOTSTRAP)
        self._process = psutil.Process(self._channel.receive(timeout=STARTING))
        self._channel.send((place(measured), self._path))

    def send(self, request: str, payload: Mapping[str, Any]) -> None:
        """Ask for something; a dead worker's end is an event, not an error here."""
        with contextlib.suppress(OSError):
            self._channel.send({"request": request, **payload})

    @property
    def alive(self) -> bool:
        """Whether the process is there and can answer."""
        if self._process is None:
            return False
        try:
            return bool(self._process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> None:
        """Kill it and all that it started."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self._process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self._process.kill()

    def interrupt(self) -> None:
        """Kill it, after it has said where it is."""
        before = os.fstat(self._log).st_size
        deadline = time.monotonic() + _SAYING
        if self._process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.send_signal(signal.SIGUSR1)  # see endpoint._settle
        while time.monotonic() < deadline and os.fstat(self._log).st_size == before:
            time.sleep(0.005)
        self.kill()

    def end(self) -> str:
        """How it ended: by which signal, or with which status or error."""
        with contextlib.suppress(EOFError, OSError):
            try:
                self._channel.waitclose(timeout=0)
            except execnet.RemoteError as error:  # `serve` itself has failed
                return str(error).strip().splitlines()[-1]
        self.kill()
        try:
            code = self._process and self._process.wait(DYING)
        except psutil.TimeoutExpired:
            return "did not end when it was killed"
        if code is None:
            return "ended"
        if code >= 0:
            return f"exited with status {int(code)}"
        known = {number.value: number.name for number in signal.Signals}
        return f"killed by {known.get(-code, f'signal {-code}')}"

    def where(self) -> str:
        """The frame that it was last seen in, such as "in forward (dot.py:20)"."""
        frames = list(_FRAME.finditer(self.tail()))
        if not frames:
            return ""
        last = frames[-1]  # the main thread comes last
        return f"in {last['name']} ({Path(last['file']).name}:{last['line']})"

    def tail(self) -> str:
        """The end of its standard error."""
        start = max(0, os.fstat(self._log).st_size - _TAIL)
        return legible(os.pread(self._log, _TAIL, start).decode(errors="replace"))

    def close(self) -> None:
        """End it; nothing of it is left."""
        self.kill()
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                self._process.wait(DYING)
        self._group.terminate(timeout=_JOINING)
        os.close(self._log)
        Path(self._path).unlink(missing_ok=True)


def import_error(facts: Mapping[str, Any]) -> str:
    """Why none of a framework's backends can be imported; "" where one can."""
    if facts["kind"] != "result":
        return str(facts["message"])
    errors = [backend["error"] for backend in facts["backends"].values()]
    return str(errors[0]) if errors and all(errors) else ""


def _spec(interpreter: Interpreter, threads: int, huge_pages: bool) -> str:
    """What execnet is to start.

    glibc reads its variables when a process begins, execnet sets its own later: so
    they are set by env(1), whose place the interpreter then takes.
    """
    variables = {
        **MALLOC_ENVIRONMENT,
        **(HUGE_PAGES_ENVIRONMENT if huge_pages else {}),
        **dict.fromkeys(_THREADS, str(threads)),
        "GLOG_minloglevel": "2",  # OneFlow: errors only
    }
    settings = [f"{name}={value}" for name, value in variables.items()]
    command = shlex.join(["env", *settings, str(interpreter.python)])
    return f"popen//execmodel=main_thread_only//python={command}"


@contextlib.contextmanager
def _sigint_blocked() -> Iterator[None]:
    """A process started meanwhile never sees Ctrl-C: its parent decides what it means.

    A Ctrl-C of this moment is not lost, it comes a moment later.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    """End the process to which execnet 2 could not write its own source.

    It forgets such a process: only a frame of the traceback still knows it.
    """
    try:
        yield
    except OSError as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            process = getattr(frame.f_locals.get("io"), "popen", None)
            if process is not None:
                process.kill()
                with contextlib.suppress(OSError):  # what was not sent is lost
                    process.communicate()
        raise
