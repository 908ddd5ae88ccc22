"""One worker: a framework's process that answers requests, in order.

A worker is ended by killing it: it keeps no data, and a hanging one would not react to
anything else.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from gradwatch.harness.project.paths import ROOT, scratch
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.arrays import decoded, encoded
from gradwatch.harness.workers.interpreters import Interpreter
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.process import Process

# glibc's allocator is fixed in one mode, so that times of fresh processes can be
# compared. By default it changes its thresholds while a process runs: one process gets
# a 1 MB gradient from the heap, the next one fresh pages, and the same backward takes
# 300 or 750 us. Setting only one of the two freezes the other at a small default.

#: Plain byte counts: "32M" is accepted silently and does nothing. The last underscores
#: are part of the name.
MALLOC_ENVIRONMENT = {
    # Buffers up to mallopt(3)'s limit on 64-bit systems stay in the heap: glibc 2.36
    # takes more, older releases refuse it.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    # Freed memory is kept: 1 GiB, more than any of our cases holds at once.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # One heap for all threads. Those of other threads are limited to 64 MiB, beyond
    # which the two above have no effect: three buffers of 24 MiB in a thread, as of
    # OneFlow, cost 6145 page faults a call, with one heap 0 (glibc 2.36).
    "MALLOC_ARENA_MAX": "1",
}

#: Makes glibc (2.35 and later, on Linux) use huge pages for the heap if possible. The
#: addresses of 4 KiB pages decide which data share a set of the L2 cache, for the whole
#: life of a process: layer_norm backward 256x1024 in two processes of one commit, on a
#: busy machine, differs with a standard deviation of 11 % on these, 5.5 % on huge ones.
#: Not used where peak memory is measured: it then grows in steps of 2 MiB.
HUGE_PAGES_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}

STARTING = 120.0  # seconds for importing a framework from a cold disk, under load
PATIENCE = 120.0  # seconds for one answer: preparing the largest size takes a few

_ENDPOINT = f"{__package__.rpartition('.')[0]}.endpoint"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Absent(Died):
    """A framework or a device is missing here."""


class Worker(Process):
    """A process that answers requests of `gradwatch.harness.endpoint` in order.

    The constructor does not wait for its start. `measured` is the checkout whose
    `impls` it runs. With `huge_pages` its heap uses huge pages, if the system has them.
    Unless it is `timed`, each page gets a fork of it. `waiting` is called every second.

    Raises:
        Died: It did not start; Absent: its interpreter is missing.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        *,
        threads: int = 1,
        measured: Path = ROOT,
        huge_pages: bool = False,
        timed: bool = True,
        waiting: Callable[[], None] = lambda: None,
    ) -> None:
        if interpreter.why_missing:
            raise Absent(interpreter.explained)
        self.framework = interpreter.framework
        self._waiting = waiting
        self._work = self._idle = self._at_rest = 0.0
        folder = contextlib.ExitStack()
        variables = {
            **MALLOC_ENVIRONMENT,
            **(HUGE_PAGES_ENVIRONMENT if huge_pages else {}),
            **dict.fromkeys(_THREADS, str(threads)),
            "GLOG_minloglevel": "2",  # OneFlow: errors only
        }
        try:
            if name := traits_of(self.framework).compiles_into:
                compiled = folder.enter_context(scratch("worker")) / "compiled"
                variables[name] = str(compiled)
            super().__init__(
                _ENDPOINT,
                "work",
                self.framework,
                timed,
                python=interpreter.python,
                measured=measured,
                variables=variables,
                logged=True,
            )
        except OSError as error:
            folder.close()
            raise Died(repr(error)) from error
        self._open.push(folder)
        self.limit(PATIENCE)

    def limit(self, seconds: float) -> None:
        """Limit the time for which one message of the pipe can block this process."""
        timeval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        with socket.socket(fileno=os.dup(self.connection.fileno())) as pipe:
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                pipe.setsockopt(socket.SOL_SOCKET, option, timeval)

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The worker's first message; see `gradwatch.harness.endpoint.probe`.

        Raises:
            Died: It ended before that; Absent: none of its backends can be imported.
        """
        facts: Mapping[str, Any] = decoded(self.heard(STARTING, self._waiting))
        errors = [backend["error"] for backend in facts.get("backends", {}).values()]
        if facts["kind"] != "result" or (errors and all(errors)):
            self.close()
            raise Absent(str(facts.get("message") or errors[0]))
        return facts

    def cpu_seconds(self) -> float:
        """The processor time of all threads of the worker; 0 where unknown."""
        with contextlib.suppress(AttributeError, OSError):  # no Linux; it has ended
            # The kernel's CPUCLOCK_SCHED, as clock_getcpuclockid(3) returns it.
            return time.clock_gettime(~self.process.pid << 3 | 2)
        return 0.0

    def waited_seconds(self) -> float:
        """The seconds that threads of the worker and this process waited for a core.

        The kernel counts it; 0 on other systems than Linux.
        """
        nanoseconds = 0
        for process in {self.process.pid, os.getpid()}:
            for file in Path(f"/proc/{process}/task").glob("*/schedstat"):
                with contextlib.suppress(OSError):  # the thread has ended
                    nanoseconds += int(file.read_text().split()[1])
        return nanoseconds / 1e9

    def ask(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """The answer to a request; an error in the worker is raised here.

        Raises:
            Died: As `reply`, or the answer is an error; Absent: the device is missing.
        """
        reply = self.reply(request, **payload)
        if reply["kind"] != "result":
            kind = Absent if reply["kind"] == "missing" else Died
            raise kind(str(reply["message"]))
        return reply

    def reply(self, request: str, **payload: Any) -> Mapping[str, Any]:
        """The answer to a request, of any kind; the timeout includes a "budget" in it.

        Raises:
            Died: The worker died, or took too long; Absent: its framework is missing.
        """
        self.facts  # noqa: B018  # wait for its first message
        self._idle += self.cpu_seconds() - self._at_rest
        answer = self.answer(request, payload, PATIENCE + payload.get("budget", 0.0))
        self._at_rest = self.cpu_seconds()
        return answer

    def rest(self) -> None:
        """Start to count the worker's processor time, for `unrest`."""
        self._work, self._idle = self.cpu_seconds(), 0.0

    def unrest(self) -> float:
        """The share of processor time since `rest` that it spent between requests."""
        return self._idle / max(self.cpu_seconds() - self._work, 1e-9)

    def answer(
        self, request: str, payload: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        """The answer to a request, of any kind, within so many seconds.

        Raises:
            Died, Late: As in `heard`; TypeError: the payload cannot be sent.
        """
        nonce = secrets.token_hex(8)
        self.say(encoded({"request": request, "nonce": nonce, **payload}))
        answer, said = dict[str, Any](), self.heard(seconds, self._waiting)
        with contextlib.suppress(Exception):  # a page, too, can write into the pipe
            answer = dict(decoded(said))
        if answer.pop("nonce", None) != nonce:
            self.end(0)
            raise Died("it wrote into the pipe of its process")
        return answer


def probe(interpreters: Iterable[Interpreter]) -> dict[str, Mapping[str, Any] | Died]:
    """The facts of interpreters, by framework, or the reason why there are none.

    All start at the same time.
    """
    found, started = dict[str, Mapping[str, Any] | Died](), list[Worker]()
    with contextlib.ExitStack() as stack:
        for one in interpreters:
            try:
                started.append(Worker(one, timed=False))
                stack.callback(started[-1].close)
            except Died as reason:
                found[one.framework] = reason
        for worker in started:
            try:
                found[worker.framework] = worker.facts
            except Died as reason:
                found[worker.framework] = reason
    return found
