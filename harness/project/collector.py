"""Python's cycle collector, which looks at what is read again and again."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


def leave_alone() -> None:
    """Never look again at what there is by now: 200,000 records without a cycle."""
    gc.freeze()


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Read 200,000 records in half the time: there is no cycle in them to be found."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
