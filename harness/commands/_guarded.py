"""Commands that load pages themselves run in a process of their own.

A page may end the process that loads it, and with exit code 0: `os._exit(0)`. So the
first process only starts a second one with the same command line, and waits. The second
says its exit code before it ends; if it does not, something has ended it. It also says
which page it imports, or of which page it runs the formula, so that the first one ends
it where that hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from gradwatch.harness.workers.isolated import PATIENCE
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.harness.workers.process import ended, sigint_blocked
from gradwatch.impls import catalogue

#: Commands whose own process loads pages or runs their formulas, as a night does where
#: it compares commits; `agree`, `time`, `fuzz` and `check` leave that to a job.
GUARDED = ("compare", "list", "nightly", "selftest", "watch")
_VARIABLE = "GRADWATCH_EXIT_CODE_TO"  # a descriptor
_LOOK = 1.0  # seconds: a process that a page has forked may keep the pipe open

_listener = -1


def is_first(arguments: Sequence[str]) -> bool:
    """Whether this process is the one that waits; a second one gets ready here."""
    global _listener
    if _VARIABLE in os.environ:
        _listener = int(os.environ.pop(_VARIABLE))
        os.set_inheritable(_listener, False)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        catalogue.guard = _running
        return False
    return bool({*arguments} & {*GUARDED}) and os.name == "posix"


def guarded(patience: float = PATIENCE) -> tuple[int, str]:
    """Run the second process; its exit code, and what to say if it has said none.

    The import of a page, or one call of its formula, may take `patience` seconds.
    """
    read, write = os.pipe()
    with sigint_blocked():  # this process decides what Ctrl-C means
        child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, _VARIABLE: str(write)},
            pass_fds=[write],
            preexec_fn=with_this_process(),
        )
    os.close(write)
    with os.fdopen(read, "rb", buffering=0):
        try:
            return _waited(child, read, patience)
        except KeyboardInterrupt:
            child.terminate()  # an interrupt for the second process, see `is_first`
            return _waited(child, read, patience)


def _waited(
    child: subprocess.Popen[bytes], read: int, patience: float
) -> tuple[int, str]:
    said, since = b"", time.monotonic()
    while not isinstance(last := _last(said), int):
        said = b"\n".join(said.split(b"\n")[-2:])  # the last line, and what follows
        if last and time.monotonic() - since > patience:
            child.kill()
            child.wait()
            return (
                1,
                f"{last}: no answer in {patience:g} s from the page or its formula",
            )
        gone = child.poll() is not None
        ready = select.select([read], [], [], 0 if gone else _LOOK)[0]
        chunk = os.read(read, 1 << 16) if ready else b""
        if chunk:
            said, since = said + chunk, time.monotonic()
        elif ready or gone:
            why = ended(child.wait())
            return 1, f"a page or its formula ended the process: {why}"
    child.wait()
    return last, ""


def _last(said: bytes) -> int | str:
    """What the second process said last: a page, an exit code, or "" for neither."""
    lines = said.rpartition(b"\n")[0].splitlines()
    last: int | str = json.loads(lines[-1]) if lines else ""
    return last


@contextlib.contextmanager
def _running(page: str) -> Iterator[None]:
    say(page)
    try:
        yield
    finally:
        say("")


def say(what: int | str) -> None:
    """Tell the first process, if there is one, the exit code or the page at hand."""
    if _listener >= 0:
        with contextlib.suppress(OSError):
            os.write(_listener, f"{json.dumps(what)}\n".encode())
