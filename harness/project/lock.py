"""One run at a time: a lock that goes with the process, however that ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout


class Busy(Exception):
    """Another process holds the lock; the message says what it is doing."""


@contextlib.contextmanager
def alone(file: Path, what: str, patience: float = 0) -> Iterator[None]:
    """Hold a lock, after waiting for it for at most `patience` seconds.

    Raises:
        Busy: Another process holds it still.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = FileLock(file).acquire(timeout=patience)
    except Timeout:
        raise Busy(f"{what} is going on already, in another process") from None
    with lock:
        yield
