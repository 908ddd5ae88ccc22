"""Ends our processes with the one that started them, and describes their exit.

`CODE` is the source of this module, for processes that cannot import it yet: a process
must ask at once to end with its parent, because its first imports take seconds.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)

CODE = Path(__file__).read_text(encoding="utf-8") if "__file__" in globals() else ""


class Died(Exception):
    """A process has ended or did not start; the message says how, as may its code."""

    def __init__(self, how: str, code: int = 0) -> None:
        super().__init__(how)
        self.code = code


class Late(Died):
    """A process has not answered in time, and was killed."""


def how_ended(code: int) -> str:
    """The meaning of an exit code: a status, or the signal that killed the process."""
    if code >= 0:
        return f"exited with status {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"


def die_with_parent(parent: int = 0) -> None:
    """Let Linux kill this process when the thread that started it ends in any way.

    Left running it would disturb the measurements of the next run. If the `parent` that
    started it has ended before this call, it ends at once.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent and os.getppid() != parent:
            os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends (only on Linux).

    So no work is hidden in a process that was detached.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def with_this_process() -> Callable[[], None]:
    """A `preexec_fn` for subprocess: the new process ends with this one."""
    return partial(die_with_parent, os.getpid())


def first_line() -> str:
    """Code that Python in a new process runs first, so that it ends with this one."""
    return f"{CODE}\ndie_with_parent({os.getpid()})\n"
