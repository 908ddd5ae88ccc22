"""A process that measures or computes ends with the one that started it."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)


def die_with_parent() -> None:
    """Have Linux kill this process when the thread that started it ends, even killed.

    Otherwise it would go on beside the next run, and disturb what that measures.
    Elsewhere it does nothing.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
