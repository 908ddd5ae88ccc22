"""Standard streams that are closed, or cannot show what is printed."""

from __future__ import annotations

import os
import sys


def nowhere(stream: int) -> None:
    """Let what is still written to a descriptor go nowhere, without an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream)
    os.close(null)


def legible_streams() -> None:
    """Have printing never fail: a closed stream, or letters that it cannot show.

    What is opened next would get the number of a closed one, and what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for as long as the process lives
        else:
            stream.reconfigure(errors="replace")
