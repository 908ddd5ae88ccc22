"""The command line in this process: what it prints, and its exit code.

A process of its own takes seconds to import what this one has imported already, and so
do the job and the workers that it starts; here they are kept from one call to the next.
What a test says of processes (signals, closed streams, pages that end them) needs a
real one.
"""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

from gradwatch.harness import __main__ as command_line
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.process import Child, Job

_kept: dict[Job, Child] = {}


@dataclass(frozen=True)
class Done:
    """How a call ended, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


class _Kept(Child):
    """A job that goes on when its command ends, unless that left it in the middle."""

    def __exit__(self, *raised: object) -> None:
        if self._busy:
            self._end()


def gradwatch(*arguments: object, fresh: bool = False) -> Done:
    """Run a command; `fresh` if a page, or the environment, changes its job."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        patch.object(sys, "argv", ["gradwatch", *map(str, arguments)]),
        contextlib.nullcontext() if fresh else _jobs_kept(),
    ):
        code = command_line._exit_code()
    return Done(code, stdout.getvalue(), stderr.getvalue())


def gradwatch_of(folder: Path, *calls: str) -> dict[str, Done]:
    """Run commands with a folder's copy of our code, all in one process, by call."""
    code = "import sys; sys.path.append(sys.argv[1]); import tests.command_line as it; "
    code += "it.answer(*sys.argv[2:])"
    started = [sys.executable, "-c", code, str(ROOT), *calls]
    done = subprocess.run(started, cwd=folder, stdout=subprocess.PIPE, check=True)
    return {call: Done(**ended) for call, ended in json.loads(done.stdout).items()}


def answer(*calls: str) -> None:
    """Print how each call ends, as JSON."""
    ended = {call: asdict(gradwatch(*call.split())) for call in calls}
    close()
    sys.stdout.write(json.dumps(ended))


@contextlib.contextmanager
def _jobs_kept() -> Iterator[None]:
    from gradwatch.harness.commands import agree, fuzz, time

    def kept(job: Job) -> Child:
        return _kept.setdefault(job, _Kept(job))

    with contextlib.ExitStack() as stack:
        for command in (agree, fuzz, time):
            stack.enter_context(patch.object(command, "Child", kept))
        yield


def close() -> None:
    """End the jobs and their workers."""
    while _kept:
        Child.__exit__(_kept.popitem()[1])
