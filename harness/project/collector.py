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
    """Make many objects that stay, such as records or modules, without looking at them.

    200,000 records are read in half the time; a framework is imported in nine tenths.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
