"""A fork of a process for code of a page: whatever that changes ends with it."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from multiprocessing.context import ForkProcess
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
    """Answers bytes with bytes, within `patience` seconds; begun at the first request.

    Of a page: `forget` closes in the fork what only this process may use. It writes no
    file of ours.
    """

    def __init__(
        self,
        answer: Callable[[bytes], bytes],
        forget: Callable[[], object] | None = None,
        patience: float | None = None,
    ) -> None:
        self._answer, self._forget, self._patience = answer, forget, patience
        self._process: ForkProcess | None = None

    def ask(self, content: bytes) -> bytes:
        """The answer.

        Raises:
            Ended: It has ended in place of one, or has been killed for lack of one.
        """
        if self._process is None:
            self._connection, theirs = Pipe()
            call = theirs, os.getpid(), writing_rules() if self._forget else -1
            fork = multiprocessing.get_context("fork")
            self._process = fork.Process(target=self._serve, args=call)
            self._process.start()
            theirs.close()
        with contextlib.suppress(EOFError, OSError):
            self._connection.send_bytes(content)
            if self._connection.poll(self._patience):
                return self._connection.recv_bytes()
        raise Ended(self.end(_ENDING))

    def _serve(self, asking: Connection, parent: int, rules: int) -> None:
        try:
            die_with_parent(parent)
            self._connection.close()
            if self._forget:
                restrict(rules)
                self._forget()
            while True:
                asking.send_bytes(self._answer(asking.recv_bytes()))
        except (EOFError, OSError):
            os._exit(0)
        finally:  # whatever a page does here, it is no copy of its caller
            traceback.print_exc()
            os._exit(1)

    def close(self) -> None:
        """Close the pipe to it; for another fork, which is to hear nothing of it."""
        if self._process is not None:
            self._connection.close()

    def end(self, patience: float = 0.0) -> int:
        """End it after that many seconds, if it runs at all; its exit code."""
        if self._process is None:
            return 0
        ended, self._process = self._process, None
        self._connection.close()
        ended.join(patience)
        ended.kill()
        ended.join()
        return ended.exitcode or 0


def forked(function: Callable[[], T]) -> T:
    """What a function returns or raises that may end its process, from a fork of it.

    Raises:
        Ended: It has ended in place of an answer, or has been killed for lack of one.
    """

    def answer(content: bytes) -> bytes:
        faulthandler.disable()  # how it ends is for this process to say
        try:
            return pickle.dumps((function(), None))
        except Exception as error:  # noqa: BLE001  # it is raised again over there
            return pickle.dumps((None, error))

    fork = Fork(answer, patience=_PATIENCE)
    try:
        found: T
        found, error = pickle.loads(fork.ask(b""))
    finally:
        fork.end()
    if error is not None:
        raise error
    return found
