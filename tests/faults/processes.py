"""Which processes a command has started, and whether they end in time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import psutil

PATIENCE = 2.0  # seconds: what is promised in docs/reliability.md
MARK = "GRADWATCH_FAULT"  # the variable by which a command's processes are known


def marked(mark: str) -> list[psutil.Process]:
    """All processes that have inherited a variable from a command."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found


def ended(processes: Iterable[psutil.Process], begun: float) -> str:
    """Which of them live on two seconds after a moment, or "".

    They are looked at until then, and ended thereafter.
    """
    patience = max(0.0, begun + PATIENCE - time.monotonic())
    _, alive = psutil.wait_procs(list(processes), timeout=patience)
    lines = []
    for process in alive:
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                lines.append(" ".join(process.cmdline())[-80:])
                process.kill()
    return "; ".join(lines)
