"""A fork of a process for code of a page: whatever that changes ends with it."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, Pipe
from typing import TypeVar

from gradwatch.harness.workers.confinement import restrict, writing_rules
from gradwatch.harness.workers.lifetime import die_with_parent

#: The exit status of a process in which a page has replaced something: the next page
#: gets another. None else ends with it, unless a page does so on purpose.
CHANGED = 86
#: Seconds for it to end by itself, once it has closed its pipe.
_ENDING = 1.0
#: Seconds for what is `forked` once.
_PATIENCE = 60.0

T = TypeVar("T")


class Ended(Exception):
    """A fork has ended; the message says how, and so does its exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(how_ended(code))
        self.code = code


def how_ended(code: int) -> str:
    """What an exit code says: a status, or the signal that killed the process."""
    if code >= 0:
        return f"exited with status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


class Fork:
    """Answers bytes with bytes; begun at the first request.

    `forget` closes in the fork what only this process may use.
    """

    def __init__(
        self, answer: Callable[[bytes], bytes], forget: Callable[[], None]
    ) -> None:
        self._answer, self._forget = answer, forget
        self._process = 0
        self._connection: Connection | None = None

    def ask(self, content: bytes) -> bytes:
        """The answer.

        Raises:
            Ended: It has ended in place of one.
        """
        if self._connection is None:
            self._connection = self._begun()
        try:
            self._connection.send_bytes(content)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise Ended(self.end(_ENDING)) from None

    def _begun(self) -> Connection:
        ours, theirs = Pipe()
        parent, rules = os.getpid(), writing_rules()
        self._process = os.fork()
        if self._process:
            theirs.close()
            # Where it is, if it hangs, is for itself to say.
            signal.signal(signal.SIGUSR1, partial(_passed_on, self._process))
            return ours
        try:
            die_with_parent(parent)
            restrict(rules)
            ours.close()
            self._forget()
            faulthandler.unregister(signal.SIGUSR1)  # this may be set for another fork
            faulthandler.register(signal.SIGUSR1, 2)
            while True:
                theirs.send_bytes(self._answer(theirs.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)
        finally:  # whatever a page does here, it is no copy of its caller
            traceback.print_exc()
            os._exit(1)

    def close(self) -> None:
        """Close the pipe to it; for another fork, which is to hear nothing of it."""
        if self._connection is not None:
            self._connection.close()

    def end(self, patience: float = 0.0) -> int:
        """End it after that many seconds, if it runs at all; its exit code."""
        if self._connection is None:
            return 0
        self._connection.close()
        self._connection, deadline = None, time.monotonic() + patience
        while True:
            ended, status = os.waitpid(self._process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() >= deadline:
                os.kill(self._process, signal.SIGKILL)
            time.sleep(0.001)


def forked(function: Callable[[], T]) -> T:
    """What a function returns or raises that may end its process, from a fork of it.

    Raises:
        Ended: It has ended in place of an answer, or has been killed for lack of one.
    """
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)

    def answered() -> None:
        faulthandler.disable()  # how it ends is for this process to say
        try:
            answer: tuple[T | None, Exception | None] = function(), None
        except Exception as error:  # noqa: BLE001  # it is raised again over there
            answer = None, error
        theirs.send(answer)

    process = fork.Process(target=answered)
    process.start()
    theirs.close()
    try:
        if ours.poll(_PATIENCE):
            found, error = ours.recv()
            if error is not None:
                raise error
            returned: T = found
            return returned
    except EOFError:
        process.join(_ENDING)
    finally:
        if process.exitcode is None:
            process.kill()
        process.join()
    raise Ended(process.exitcode or 0)


def _passed_on(process: int, number: int, frame: object) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)
