"""Runs Python in a process of its own for a part of the night."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from gradwatch.harness.nightly.model import Night
from gradwatch.harness.workers.lifetime import with_this_process

PATIENCE = 2 * 3600.0  # seconds for a part in its own process: many times what it needs


def child(night: Night, name: str, call: Sequence[str]) -> tuple[int, str]:
    """Run Python in a process that ends with this one; return exit code and last line.

    Its output goes to parts/<name>.log.
    """
    log = night.journal.folder / f"{name}.log"
    with log.open("w", encoding="utf-8") as said:
        done = subprocess.run(
            [sys.executable, *call],
            cwd=night.root,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            preexec_fn=with_this_process(),
        )
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return done.returncode, lines[-1][:300] if lines else ""
