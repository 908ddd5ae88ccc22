"""Commands that load pages themselves run in a process of their own.

A page may end the process that loads it, and with exit code 0: `os._exit(0)`. So the
first process only starts a second one with the same command line, and waits. The second
says its exit code before it ends; if it does not, something has ended it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from harness.workers.lifetime import with_this_process
from harness.workers.process import ended, sigint_blocked

#: Commands whose own process loads pages or runs their formulas; `agree`, `time`,
#: `fuzz`, `nightly` and `check` leave that to a job, op by op.
GUARDED = ("compare", "list", "selftest", "watch")
_VARIABLE = "GRADWATCH_EXIT_CODE_TO"  # a descriptor

_listener = -1


def is_first(arguments: Sequence[str]) -> bool:
    """Whether this process is the one that waits; a second one gets ready here."""
    global _listener
    if _VARIABLE in os.environ:
        _listener = int(os.environ.pop(_VARIABLE))
        os.set_inheritable(_listener, False)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        return False
    return bool({*arguments} & {*GUARDED}) and os.name == "posix"


def guarded() -> tuple[int, str]:
    """Run the second process; its exit code, and how it ended if it has said none."""
    read, write = os.pipe()
    with sigint_blocked():  # this process decides what Ctrl-C means
        child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, _VARIABLE: str(write)},
            pass_fds=[write],
            preexec_fn=with_this_process(),
        )
    os.close(write)
    try:
        code = child.wait()
    except KeyboardInterrupt:
        child.terminate()  # an interrupt for the second process, see `is_first`
        code = child.wait()
    with os.fdopen(read, "rb") as listening:
        said = listening.read()
    return (int(said), "") if said else (1, ended(code))


def say(code: int) -> None:
    """Tell the first process, if there is one, how this one ends."""
    if _listener >= 0:
        with contextlib.suppress(OSError):
            os.write(_listener, str(code).encode())
