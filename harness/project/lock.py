"""Locks, so that only one run works at a time, and cleaning up after killed runs."""

from __future__ import annotations

import contextlib
import glob
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

STALE = 3600.0  # seconds: what is written hidden, and then renamed, takes a few


class Busy(Exception):
    """Another process holds the lock; the message says for what."""


@contextlib.contextmanager
def alone(file: Path, what: str, patience: float = 0) -> Iterator[None]:
    """Hold a lock, which goes with the process however that ends.

    It is waited for, for at most `patience` seconds.

    Raises:
        Busy: Another process holds it still.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(file).acquire(timeout=patience)
    except Timeout:
        raise Busy(f"{what} is going on already, in another process") from None
    with lock:
        try:
            yield
        finally:  # who waits for it sees that this file is no name's, and tries again
            file.unlink(missing_ok=True)


def remove_stale(target: Path) -> None:
    """Remove files that killed runs left when they were replacing a file or folder.

    A new one is written beside it first, hidden, such as .agree.json.x7d_q.
    """
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with contextlib.suppress(OSError):  # another run has removed it
            if time.time() - left.lstat().st_mtime < STALE:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
