"""Lets a process end together with the process that started it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends in any way.

    Otherwise it would continue and disturb the measurements of the next run. On other
    systems this does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
