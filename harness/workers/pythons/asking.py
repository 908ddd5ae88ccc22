"""Asks a Python what it has, without importing any of it.

One process answers for all frameworks that this Python runs: to start one takes longer
than to answer.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

_PATIENCE = 30  # seconds for an interpreter to start: a cold disk is slow
_QUESTION = Path(__file__).with_name("question.py")


class Facts(msgspec.Struct):
    """What a Python says of itself.

    python: `sys.version`. numpy: its version, or "". frameworks: those of the ones
    asked for that are installed. The rest is asked for separately: installed: name,
    version and hash of the list of files of each distribution; unlisted: those that can
    change unseen; libc: name and version of GNU's, or "".
    """

    python: str
    numpy: str
    frameworks: list[str]
    libc: str = ""
    installed: list[tuple[str, str, str]] = []
    unlisted: list[str] = []


def ask(python: Path, frameworks: Sequence[str], *, contents: bool = False) -> Facts:
    """What a Python has of these frameworks, with `contents` all that is installed.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: It does not run.
    """
    done = subprocess.run(
        [python, _QUESTION, *(["--contents"] if contents else ()), *frameworks],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"exit status {done.returncode}")
    try:  # whatever a site's own start-up files print comes before
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Facts)
    except (ValueError, IndexError):
        raise ValueError(f"it answers {done.stdout[:40]!r}") from None
