"""Starts, asks and ends one worker: a framework's process at the end of a pipe.

A thread for each worker puts its answers into a queue of events, so that one thread can
handle several workers. A worker is ended by killing it: it keeps no data, and a hanging
one would not react to anything else.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from gradwatch.harness.project.imports import START, place
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.allocator import (
    HUGE_PAGES_ENVIRONMENT,
    MALLOC_ENVIRONMENT,
)
from gradwatch.harness.workers.arrays import decoded, encoded, legible
from gradwatch.harness.workers.lifetime import first_line
from gradwatch.harness.workers.messages import tail
from gradwatch.harness.workers.pythons.interpreters import Interpreter

STARTING = 120.0  # seconds for importing a framework from a cold disk, under load
DYING = 5.0  # seconds from a kill to the end of the process
_JOINING = 1.0  # seconds for the thread that listens to a worker to see its end
_ENDING = 1.0  # seconds for a worker to end by itself, once it has closed its pipe
_SAYING = 0.5  # seconds for a hung worker to say where it is

_ENDPOINT = f"{__package__.rpartition('.')[0]}.endpoint"

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_FRAME = re.compile(  # faulthandler's
    r"most recent call first\):\n"
    r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<name>.+)'
)
_RAISED = re.compile(r"^Traceback .+\n(?: .*\n)+(\S.*)", re.MULTILINE)


class Died(Exception):
    """A worker has ended or did not start; the message says how."""


@dataclass(frozen=True)
class Event:
    """An answer of a worker; `reply` is None when it has ended. `at` is monotonic."""

    worker: Worker
    reply: Mapping[str, Any] | None
    at: float


class Worker:
    """A process that answers requests of `gradwatch.harness.endpoint` in order.

    Its first answer is that of `probe`. Linux ends it with the *thread* that started
    it. `measured` is the checkout whose `impls` it runs; all other code is this
    checkout's. With `huge_pages` its heap uses huge pages, if the system has them.
    `programs` is a folder in which JAX finds what another worker has compiled.
    `handlers` are requests that it will get beside `evaluate`.

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
        programs: str = "",
        handlers: Sequence[str] = (),
    ) -> None:
        self._interpreter, self._heard = interpreter, False
        self._log, path = tempfile.mkstemp(prefix="gradwatch-")
        os.unlink(path)  # nothing is left of it, whatever ends this process
        self._compiled = f"{path}-compiled"  # of its own: none grows that of the user
        self._process: psutil.Popen | None = None
        self._connection, theirs = Pipe()
        self._listener = threading.Thread(
            target=self._listen, args=[events], daemon=True
        )
        variables = {
            **_variables(threads, huge_pages, programs),
            "TORCHINDUCTOR_CACHE_DIR": self._compiled,
        }
        try:
            with theirs, sigint_blocked():
                self._begin(theirs, variables, measured)
        except OSError as error:
            self.close()
            raise Died(self._no_worker(repr(error))) from error
        except BaseException:
            self.close()
            raise
        self._listener.start()
        asked = {"framework": interpreter.framework, "handlers": list(handlers)}
        self.send("probe", asked)

    def _begin(
        self, theirs: Connection, variables: Mapping[str, str], measured: Path
    ) -> None:
        number = theirs.fileno()
        code = calling(_ENDPOINT, "work", number, measured=measured)
        self._process = psutil.Popen(
            [str(self._interpreter.python), "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            env=os.environ | variables,
            pass_fds=[number],
        )

    def _listen(self, events: SimpleQueue[Event]) -> None:
        """Put all that it answers among the events, and then its end."""
        with contextlib.suppress(Exception):  # a page, too, can write into the pipe
            while True:
                content = self._connection.recv_bytes()
                self._heard = True
                events.put(Event(self, dict(decoded(content)), time.monotonic()))
        events.put(Event(self, None, time.monotonic()))

    def _no_worker(self, why: str) -> str:
        return f"{self._interpreter.shown} runs, but not as a worker ({why})"

    def send(self, request: str, payload: Mapping[str, Any]) -> None:
        """Send a request; if the worker is dead, an event says so, not an error."""
        with contextlib.suppress(OSError):
            self._connection.send_bytes(encoded({"request": request, **payload}))

    @property
    def alive(self) -> bool:
        """Whether the process is there and can answer."""
        return self._process is not None and self._process.poll() is None

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
        """Kill it, after it has written where it is (a traceback) to standard error."""
        before = os.fstat(self._log).st_size
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                self._process.send_signal(signal.SIGUSR1)  # see endpoint._settle
        deadline = time.monotonic() + _SAYING
        while time.monotonic() < deadline and os.fstat(self._log).st_size == before:
            time.sleep(0.005)
        self.kill()

    def end(self) -> str:
        """How it ended: a signal, an exit status or an error."""
        code = self._code()
        if code is None:
            return "did not end when it was killed"
        how = ended(code, self.tail())
        return how if self._heard or code < 0 else self._no_worker(how)

    def _code(self) -> int | None:
        """Its exit code, negative for a signal; None if it cannot be ended."""
        for patience in (_ENDING, DYING):
            with contextlib.suppress(psutil.TimeoutExpired):
                return int(self._process.wait(patience)) if self._process else None
            self.kill()
        return None

    def where(self) -> str:
        """The last known position in its code, such as "in forward (dot.py:20)"."""
        return where(self.tail())

    def tail(self) -> str:
        """The end of its standard error."""
        return text(tail(self._log))

    def close(self) -> None:
        """End it and remove its log."""
        self.kill()
        if self._process is not None:
            with contextlib.suppress(psutil.Error):
                self._process.wait(DYING)
        if self._listener.is_alive():
            self._listener.join(_JOINING)
        if not self._listener.is_alive():  # else what the worker started holds the pipe
            self._connection.close()
        if self._log >= 0:  # who gave up waiting has closed it before
            os.close(self._log)
            self._log = -1
        shutil.rmtree(self._compiled, ignore_errors=True)


def calling(module: str, name: str, *arguments: Any, measured: Path = ROOT) -> str:
    """Code for Python in a new process, which ends with this one: a call of ours."""
    called = f"from {module} import {name}\n{name}{arguments!r}"
    return f"{first_line()}place = {place(measured)!r}\n{START}\n{called}"


def text(log: bytes) -> str:
    """What was written to a log, without what a terminal or XML cannot show."""
    return legible(log.decode(errors="replace"))


def ended(code: int, log: str = "") -> str:
    """What an exit code of a process says: its status, or the signal that killed it.

    Status 1 is that of an exception; the last one in the log is `endpoint.work`'s.
    """
    raised = _RAISED.findall(log)
    if code == 1 and raised:
        return str(raised[-1])
    if code >= 0:
        return f"exited with status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


def where(log: str) -> str:
    """The last known position in a log, such as "in forward (dot.py:20)"."""
    frames = list(_FRAME.finditer(log))
    if not frames:
        return ""
    last = frames[-1]  # the main thread comes last
    return f"in {last['name']} ({Path(last['file']).name}:{last['line']})"


def import_error(facts: Mapping[str, Any]) -> str:
    """Why no backend of a framework can be imported; "" if one can."""
    if facts["kind"] != "result":
        return str(facts["message"])
    errors = [backend["error"] for backend in facts["backends"].values()]
    return str(errors[0]) if errors and all(errors) else ""


def _variables(threads: int, huge_pages: bool, programs: str) -> dict[str, str]:
    """What a worker's environment has besides ours."""
    return {
        **MALLOC_ENVIRONMENT,
        **(HUGE_PAGES_ENVIRONMENT if huge_pages else {}),
        **dict.fromkeys(_THREADS, str(threads)),
        "GLOG_minloglevel": "2",  # OneFlow: errors only
        **(_kept(programs) if programs else {}),
    }


def _kept(programs: str) -> dict[str, str]:
    """JAX's settings to keep in a folder all that it compiles, however small or quick.

    docs.jax.dev, "Persistent compilation cache".
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": programs,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Within this, new processes ignore Ctrl-C: their parent decides what it means.

    A Ctrl-C that arrives meanwhile is not lost, only delayed.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
