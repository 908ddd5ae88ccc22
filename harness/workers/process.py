"""A Python process of our own at the end of a pipe: how it starts, dies and is ended.

`Child` runs a function in one, such as the judging of pages; `Worker` a framework.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Pipe
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import psutil

from gradwatch.harness.project.paths import ROOT, START, place
from gradwatch.harness.workers.arrays import legible
from gradwatch.harness.workers.fork import how_ended
from gradwatch.harness.workers.lifetime import first_line

DYING = 5.0  # seconds from a kill to the end of the process
#: Seconds between two looks whether a silent process is there: one that a page has
#: forked may keep the pipe open.
LOOK = 1.0
_ENDING = 1.0  # seconds for a process to end by itself, once it has closed its pipe
_TAIL = 16384  # bytes of a log: more than a traceback of every thread takes

_FRAME = re.compile(  # faulthandler's
    r"most recent call first\):\n"
    r'  File "(.+)", line (\d+) in (.+)'
)
_RAISED = re.compile(r"^Traceback .+\n(?: .*\n)+(\S.*)", re.MULTILINE)


class Process:
    """A Python process that calls a function of ours with the number of its pipe.

    Linux ends it with the *thread* that started it. Ctrl-C never reaches it: its parent
    decides what that means.

    Args:
        call: The module and the name of the function, and arguments after the number.
        python: The interpreter.
        measured: The checkout whose `impls` it runs; all other code is this checkout's.
        environment: Its environment, in place of this one's.
        variables: What it has besides.
        stdout: Where its standard output goes; by default nowhere.
        stdin: Likewise; None is this process's own.
        logged: Whether its standard error goes into a file, for `tail` and `where`.
        traced: Whether a file, for `where`, gets the place in its code if it crashes.
        alone: Whether it gets a session, all of which ends with it.

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
        self._alone, self._open = alone, contextlib.ExitStack()
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
        """Whether it is there and can answer."""
        return self.process.poll() is None

    def heard(self, seconds: float, waiting: Callable[[], object] = int) -> bytes:
        """What it says next; `waiting` is called every second or so.

        Raises:
            TimeoutError: Nothing, in so many seconds; 0 are for ever.
            EOFError, OSError: Nothing, since it has ended.
        """
        end = time.monotonic() + seconds if seconds else float("inf")
        while True:
            left = end - time.monotonic()
            there = self.connection.poll(max(0.0, min(LOOK, left)))
            waiting()
            if there:
                break
            if not self.alive and not self.connection.poll(0):
                raise EOFError
            if left <= 0:
                raise TimeoutError
        try:
            return self.connection.recv_bytes()
        except BlockingIOError:  # it has stopped in the middle of a message
            raise TimeoutError from None

    def kill(self) -> None:
        """Kill it and all that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in self.process.children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            self.process.kill()
        if self._alone:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def end(self, patience: float = _ENDING) -> str:
        """How it ended: a signal, an exit status or an error.

        It is killed if it has not ended after `patience` seconds.
        """
        for seconds in (patience, DYING):
            with contextlib.suppress(psutil.TimeoutExpired):
                return self._how(int(self.process.wait(seconds)))
            self.kill()
        return "did not end when it was killed"

    def _how(self, code: int) -> str:
        """What its exit code says, or the last exception in its log."""
        raised = _RAISED.findall(self.tail()) if code == 1 else ()
        return str(raised[-1]) if raised else how_ended(code)

    def where(self) -> str:
        """The last known position in its code, such as "in forward (dot.py:20)"."""
        for file, line, name in _FRAME.findall(self.tail())[-1:]:  # the main thread's
            return f"in {name} ({Path(file).name}:{line})"
        return ""

    def tail(self) -> str:
        """The end of its standard error, without what XML cannot contain."""
        if not self._log or self._log.closed:  # by who gave up waiting
            return ""
        log = self._log.fileno()
        start = max(0, os.fstat(log).st_size - _TAIL)
        return legible(os.pread(log, _TAIL, start).decode(errors="replace"))

    def close(self) -> None:
        """End it and remove its log."""
        self.kill()
        with contextlib.suppress(psutil.Error):
            self.process.wait(DYING)
        self._open.close()
