"""Locks, so that only one run works at a time, and cleaning up after killed runs."""

from __future__ import annotations

import contextlib
import glob
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

STALE = 3600.0  # seconds: writing a hidden file and renaming it takes a few
_SWEPT = 10.0  # seconds: a run that removes old folders may hold the lock of a new one


class Busy(Exception):
    """Another process holds the lock; the message names its purpose."""

    exit_code = 2


@contextlib.contextmanager
def alone(file: Path, what: str, patience: float = 0) -> Iterator[None]:
    """Hold a lock, which is released however the process ends.

    Wait for it for at most `patience` seconds.

    Raises:
        Busy: Another process still holds it.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()  # the lock waits for a file that nobody can make
    try:
        lock = FileLock(file, thread_local=False).acquire(timeout=patience)
    except Timeout:
        raise Busy(f"{what} is going on already, in another process") from None
    with lock:
        try:
            yield
        finally:  # a waiting process finds the file unlinked, and tries again
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Yield a temporary folder that is removed at the end.

    Folders of the same kind that killed processes left, whose locks are free, are
    removed first.
    """
    begins = f"gradwatch-{kind}-"
    for left in Path(tempfile.gettempdir()).glob(f"{begins}*/lock"):
        with contextlib.suppress(Busy, OSError), alone(left, ""):
            shutil.rmtree(left.parent)
    with (
        tempfile.TemporaryDirectory(
            prefix=begins, ignore_cleanup_errors=True
        ) as folder,
        alone(Path(folder, "lock"), "its use", _SWEPT),  # another run may probe it
    ):
        yield Path(folder)


def remove_stale(target: Path) -> None:
    """Remove files that killed runs left when they were replacing a file or folder.

    A replacement is first written beside it as a hidden file like .agree.json.x7d_q.
    """
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with contextlib.suppress(OSError):  # another run has removed it
            if time.time() - left.lstat().st_mtime < STALE:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
