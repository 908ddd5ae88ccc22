"""Kills a process of a command at a random moment, and looks at what is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from tests.faults import project
from tests.faults.campaign import Fault
from tests.faults.processes import MARK, ended, marked
from tests.histories import git

LONGEST = 300.0  # seconds for a command that takes ten on a quiet machine
NARROW = ("--op", "square", "--backend", "numpy_manual")
BRIEF = ("--size", "small", "--budget", "0.2")


@dataclass(frozen=True)
class Command:
    """A command line; `share` says how often it is chosen.

    `documents` are the files that it writes, in the folder where it runs: what stands
    there is a whole document at any moment, and after exit 0 all of them are there.
    What fails within asv is told by asv with a traceback: that one is not `ours`.
    """

    arguments: Sequence[str]
    documents: Sequence[str] = ()
    share: int = 1
    ours: bool = True


def _ours(*arguments: str, share: int = 1, written: Sequence[str] = ()) -> Command:
    """One of our commands; with an option --json it writes out.json."""
    files = (*written, *(["out.json"] if "--json" in arguments else []))
    return Command(("-m", "gradwatch", *arguments), files, share)


JSON = ("--json", "out.json")
COMMANDS = {
    "agree": _ours("agree", *NARROW, *JSON, share=8),
    "time": _ours("time", *NARROW, *BRIEF, *JSON, share=3),
    "fuzz": _ours(
        *("fuzz", *NARROW, "--budget", "2", "--folder", "findings", *JSON), share=3
    ),
    "compare": _ours(
        *("compare", "numpy_manual", "numpy_graph", "--op", "square", *BRIEF, *JSON),
        share=2,
    ),
    "compare commits": _ours(
        *("compare", "HEAD", "HEAD", *NARROW, *BRIEF, "--pairs", "1", *JSON), share=2
    ),
    "selftest": _ours("selftest", "--quick", "--op", "square", *JSON, share=2),
    "report": _ours("report", share=2),
    "nightly": _ours(
        *("nightly", *NARROW, "--part", "agree", "--part", "time", "--part", "report"),
        *("--budget", "10s"),
        share=3,
        written=("nightly/nightly.json",),
    ),
    "asv": Command(
        ("-m", "asv", "run", "--bench", "^bench_accuracy[.]square", "HEAD^!"),
        share=3,
        ours=False,
    ),
    "watch": _ours("watch", *JSON),
    "check": _ours("check", "torch.square", "--shape", "4", *JSON),
    "doctor": _ours("doctor", *JSON),
    "list": _ours("list", "cases"),
}


#: Commands that keep something from one run to the next, and run once more at the end.
AGAIN = ("compare commits", "nightly", "asv", "report")


def inject(
    count: int,
    random: Random,
    folder: Path,
    commands: Mapping[str, Command] | None = None,
) -> Iterator[Fault]:
    """Kill random commands, and end with a run of each that must succeed as before."""
    commands = COMMANDS if commands is None else commands
    root = project.made(folder)
    seconds = dict[str, float]()
    weights = [command.share for command in commands.values()]
    names = random.choices(list(commands), weights, k=count)
    for name in sorted(names, key=list(commands).index):
        command = commands[name]
        if name not in seconds:
            seconds[name] = _whole(command, root)
        yield _killed(name, command, root, random, seconds[name])
    for name in seconds:
        if name in AGAIN:
            _whole(commands[name], root)
    _nothing_kept(root)


def _whole(command: Command, root: Path) -> float:
    """Run a command to its end; the seconds that it takes.

    Raises:
        RuntimeError: It fails although nothing was injected.
    """
    with _started(command, root, f"{os.getpid()}-whole") as running:
        begun = time.monotonic()
        running.wait(LONGEST)
        taken = time.monotonic() - begun
    if running.returncode:
        said = (root / "said").read_text(errors="replace")[-600:]
        raise RuntimeError(f"exit {running.returncode}: {command.arguments}: {said}")
    if torn := _torn(command, root, complete=True):
        raise RuntimeError(f"{command.arguments}: {torn}")
    return taken


@contextlib.contextmanager
def _started(
    command: Command, root: Path, mark: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a command whose processes bear a mark; what it says is in `said`."""
    with (root / "said").open("w") as said:
        running = subprocess.Popen(
            [sys.executable, *command.arguments],
            cwd=root,
            env={**os.environ, MARK: mark, "TMPDIR": str(_scratch(root))},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
        )
    try:
        yield running
    finally:
        for process in marked(mark):
            with contextlib.suppress(psutil.Error):
                process.kill()
        running.wait()


def _scratch(root: Path) -> Path:
    (root / "tmp").mkdir(exist_ok=True)
    return root / "tmp"


def _killed(
    name: str, command: Command, root: Path, random: Random, seconds: float
) -> Fault:
    """Kill the command or one of its processes, and see what it costs."""
    mark = f"{os.getpid()}-{random.getrandbits(64)}"
    at, first = random.uniform(0, seconds), random.random() < 0.6
    if random.random() < 0.5:  # an old document stays, or none may stand in for it
        for file in command.documents:
            (root / file).unlink(missing_ok=True)
    with _started(command, root, mark) as running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(at)
        others = sorted(p.pid for p in marked(mark) if p.pid != running.pid)
        victim = running.pid if first or not others else random.choice(others)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = running.wait(LONGEST)
        begun = time.monotonic()
        left = "it hangs" if code is None else ended(marked(mark), begun)
    who = "itself" if victim == running.pid else "one of its processes"
    return Fault(f"{name}, {who} at {at:.2f} s", _lost(command, root, code, left))


def _lost(command: Command, root: Path, code: int | None, left: str) -> dict[str, str]:
    said = (root / "said").read_text(errors="replace")
    lost = {}
    if left:
        lost["process left"] = left
    if command.ours and "Traceback (most recent" in said:
        lost["traceback"] = " ".join(said[said.find("Traceback") :].split())[-300:]
    if torn := _torn(command, root, complete=False):
        lost["result lost"] = torn
    if code == 0 and (torn := _torn(command, root, complete=True)):
        lost["exit 0 without judging"] = torn
    return lost


def _torn(command: Command, root: Path, *, complete: bool) -> str:
    """What is wrong with the documents of a command, or "".

    One that has no records counts as none.
    """
    for name in command.documents:
        try:
            found = documents.load(root / name, dict[str, Any])
        except Unreadable as error:
            if complete or "No such file" not in str(error):
                return str(error)
        else:
            silent = not (found.get("records") or found.get("summary"))
            if complete and silent:
                return f"{name} says nothing"
    return ""


def _nothing_kept(root: Path) -> None:
    """Raise if the last runs have not cleaned up after those that were killed."""
    trees = git(root, "worktree", "list", "--porcelain").split("\n\n")
    assert len(trees) == 1, f"worktrees are left: {trees}"
    for file in root.glob("results/asv/**/*.json"):
        json.loads(file.read_text())
