"""Standard streams: closed ones, letters they lack, and a line with the progress."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from shutil import get_terminal_size

#: Seconds before the first line on a terminal, and between two there and in a log.
SILENT, EACH, EVERY = 3.0, 1.0, 10.0
#: The control sequence that returns to the start of a terminal's line and clears it.
ANEW = "\r\033[K"


def nowhere(stream: int) -> None:
    """Redirect a descriptor to /dev/null, so that writing raises no error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream)
    os.close(null)


def legible_streams() -> None:
    """Let printing never fail, for a closed stream or letters that it cannot show.

    The next opened file would get the number of a closed stream, and its output.
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
def ticking(
    what: Callable[[], str],
    before: str = "",
    *,
    terminal: bool = True,
    log: bool = True,
) -> Iterator[None]:
    """Write a line on standard error while work goes on, so that it is no hang.

    On a terminal it is rewritten each second, in a log it is repeated every ten;
    either may be left out. `before` ends a line that another program has begun. A
    thread writes it, so that one long step does not stop it.
    """
    shown = sys.stderr.isatty()
    if not (terminal if shown else log):
        yield
        return
    over, begun, width = threading.Event(), time.monotonic(), get_terminal_size()[0]

    def tell() -> None:
        lead, wait = before, SILENT if shown else EVERY
        while not over.wait(wait):
            line = f"gradwatch: {what()}, {time.monotonic() - begun:.0f} s"
            text = f"{ANEW}{line[: width - 1]}" if shown else f"{lead}{line}\n"
            lead, wait = "", EACH if shown else EVERY
            sys.stderr.write(text)
            sys.stderr.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        clear()


def clear() -> None:
    """Remove the line of `ticking` from a terminal, where its process has ended."""
    sys.stderr.write(ANEW if sys.stderr.isatty() else "")
