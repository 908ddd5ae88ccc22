"""Standard streams: closed ones, letters they lack, and a line while work goes on."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator


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


@contextlib.contextmanager
def telling(line: Callable[[float], str], first: float, then: float) -> Iterator[None]:
    """Write `line(seconds so far)` to standard error after `first`, and each `then`.

    A thread does it, so that one long step does not silence the lines.
    """
    over, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = first
        while not over.wait(wait):
            wait = then
            sys.stderr.write(line(time.monotonic() - begun))
            sys.stderr.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
