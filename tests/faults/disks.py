"""Writers on a disk that is full: the old file stands, or the new one is whole.

Where a file may grow to some bytes only, a write fails at a random place, as it does on
a full disk. Commands also run on a real one: a small file system of their own, which
is full or cannot be written.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.records import AGREE, AgreeSummary
from tests.faults.campaign import Fault

DEAR = 0.15  # share of the faults for which a command runs: it takes a second

Write = Callable[[Path, str], None]


def inject(
    count: int, random: Random, folder: Path, writers: Mapping[str, Write] | None = None
) -> Iterator[Fault]:
    """Let random writers replace a document where there is too little room."""
    writers = WRITERS if writers is None else writers
    dear = int(count * DEAR) if _may_mount() else 0
    for _ in range(count - dear):
        name = random.choice(list(writers))
        yield _too_long(name, writers[name], folder / "cheap", random)
    for number in range(dear):
        yield _mounted(folder / f"disk-{number}", random)


# In this process ----------------------------------------------------------------


@contextlib.contextmanager
def _room(size: int) -> Iterator[None]:
    """No file may grow beyond a size; Python ignores the signal, and write fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def _too_long(name: str, write: Write, folder: Path, random: Random) -> Fault:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    file = folder / "out.json"
    write(file, "old")
    kept = file.read_bytes()
    new = "new" * random.randrange(1, 20_000)
    size = random.randrange(len(new) + 200)
    what, lost = f"{name}, {len(new)} characters into {size} bytes", {}
    try:
        with _room(size):
            write(file, new)
    except OSError as error:
        if not error.filename or file.name not in str(error.filename):
            lost["traceback"] = f"no file is named: {error}"
        if not file.exists() or file.read_bytes() != kept:
            lost["result lost"] = "the old document is not what it was"
    except Exception:  # noqa: BLE001  # whatever it is, it is a loss
        lost["traceback"] = traceback.format_exc(limit=-1)[-300:]
    else:
        if new not in file.read_text():
            lost["exit 0 without judging"] = "nothing is raised, and half is written"
    if os.listdir(folder) != [file.name]:
        lost.setdefault("result lost", f"half a file is left: {os.listdir(folder)}")
    return Fault(what, lost)


def _document(file: Path, text: str) -> None:
    summary = AgreeSummary(missing={"a": text})
    documents.write(documents.document([], summary, documents.Environment()), file)


WRITERS: Mapping[str, Write] = {
    "a document": _document,
    "a text": documents.replace_file,
}


# On a disk of its own -----------------------------------------------------------

#: Mounts a small disk, puts the old files there, runs a command, and brings away what
#: stands there: the mount goes with the process. $1: options; $2: what is done to the
#: disk before the command.
_SCRIPT = """
mount -t tmpfs -o "$1" none disk && cp old/* disk/ && eval "$2" || exit 99
shift 2
"$@"
code=$?
cp disk/* after/
exit $code
"""
_FORMS = ("--json", "--markdown")


def _may_mount() -> bool:
    """Whether the system lets a process have mounts of its own."""
    call = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    with contextlib.suppress(OSError):
        return not subprocess.run(call, capture_output=True).returncode
    return False


def _mounted(folder: Path, random: Random) -> Fault:
    """Run `agree` with two documents onto a disk that is full, or read only."""
    for name in ("disk", "old", "after"):
        (folder / name).mkdir(parents=True)
    names = [f"out{form.replace('--', '.')}" for form in _FORMS]
    for name in names:
        (folder / "old" / name).write_text(json.dumps({"old": name}))
    read_only = random.random() < 0.3
    room = random.randrange(16, 48)
    spoil = "mount -o remount,ro disk" if read_only else "true"
    call = [sys.executable, "-m", "gradwatch", "agree", "--op", "square"]
    call += ["--backend", "numpy_manual", "--regime", "normal"]
    for form, name in zip(_FORMS, names, strict=True):
        call += [form, f"disk/{name}"]
    script = ["unshare", "-rm", "sh", "-c", _SCRIPT, "sh", f"size={room}k", spoil]
    done = subprocess.run(
        [*script, *call],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
    )
    what = "agree, a disk that is read only" if read_only else f"agree, {room} KiB"
    return Fault(what, _of_the_command(done, folder / "after", names))


def _of_the_command(
    done: subprocess.CompletedProcess[str], after: Path, names: list[str]
) -> dict[str, str]:
    lost = {}
    if done.returncode == 99:
        raise RuntimeError(f"no disk could be made: {done.stderr}")
    if "Traceback" in done.stderr:
        lost["traceback"] = done.stderr[-300:]
    new = []
    for name in names:
        text = (after / name).read_text() if (after / name).exists() else ""
        old = text == json.dumps({"old": name})
        if not old and not _whole(after / name, text):
            lost["result lost"] = f"{name}: {text[:100]!r}"
        new += [] if old else [name]
    if done.returncode == 0 and new != names:
        lost["exit 0 without judging"] = f"only {new} of {names} were written"
    return lost


def _whole(file: Path, text: str) -> bool:
    """Whether a document of `agree` is complete."""
    if file.suffix == ".json":
        try:
            return bool(documents.read(file, AGREE).records)
        except Unreadable:
            return False
    return text.startswith("All as expected") and text.endswith("\n\n")
