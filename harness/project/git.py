"""What git knows of the checkout: commits, their order, and their files for a while."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.project.paths import ROOT

#: What a commit is measured by: a step is a step of these files.
IMPLEMENTATIONS = "impls"

#: What a measurement depends on: changes elsewhere, results among them, are none of it.
CODE = (IMPLEMENTATIONS, "harness", "benchmarks", "requirements", "asv.conf.json")


class NoCommit(Exception):
    """A name that is no commit of this checkout, or no checkout at all."""


def git(*arguments: str, root: Path = ROOT) -> str:
    """What a git command prints.

    Raises:
        NoCommit: It failed; the message is git's.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except FileNotFoundError:
        raise NoCommit("git is not installed") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"git {arguments[0]} failed"]
        raise NoCommit(lines[-1].removeprefix("fatal: "))
    return done.stdout.rstrip("\n")


@contextlib.contextmanager
def checked_out(commit: str, root: Path = ROOT) -> Iterator[Path]:
    """A folder with the files of a commit; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="gradwatch-") as folder:
        tree = Path(folder, "tree")
        git("worktree", "add", "--quiet", "--detach", str(tree), commit, root=root)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree), root=root)


def commit_of(name: str, root: Path = ROOT) -> str:
    """The hash of a commit.

    Raises:
        NoCommit: There is none of that name here.
    """
    try:
        return git("rev-parse", "--verify", f"{name}^{{commit}}", root=root)
    except NoCommit:
        raise NoCommit(f"{name!r} is no commit of this checkout") from None


def subject(commit: str, root: Path = ROOT) -> str:
    """The first line of a commit's message; "" where it is not here."""
    try:
        return git("show", "-s", "--format=%s", commit, "--", root=root)
    except NoCommit:
        return ""


def implementing(old: str, new: str, op: str, root: Path = ROOT) -> list[str]:
    """Commits after `old` up to `new` that change what `op` runs, oldest first.

    On the first-parent line, where one follows from the other: a branch counts as its
    merge. All pages at once with "*" as the op.
    """
    options = ("--first-parent", "--reverse", f"{old}..{new}")
    paths = [f":(glob){path}" for path in _files(op)]
    return git("rev-list", *options, "--", *paths, root=root).split()


def _files(op: str) -> tuple[str, ...]:
    """A page imports none of the others, so theirs are not among an op's."""
    folder = IMPLEMENTATIONS
    return f"{folder}/*.py", f"{folder}/backends/**", f"{folder}/ops/{op}.py"


def same_implementation(old: str, new: str, op: str, root: Path = ROOT) -> bool:
    """Whether two commits run the same files for an op, byte for byte.

    Not where one has no such page: then it says nothing.
    """
    page = f"{IMPLEMENTATIONS}/ops/{op}.py"
    try:
        git("cat-file", "-e", f"{old}:{page}", root=root)
        paths = [f":(glob){path}" for path in _files(op)]
        return not git("diff", "--name-only", old, new, "--", *paths, root=root)
    except NoCommit:
        return False


def count_between(old: str, new: str, root: Path = ROOT) -> int:
    """How many commits `new` has and `old` has not."""
    return int(git("rev-list", "--count", f"{old}..{new}", root=root))


def newest_release(root: Path = ROOT) -> str:
    """The newest tag that looks like a version, before HEAD; "" if there is none."""
    told = ("--tags", "--abbrev=0", "--match", "v[0-9]*", "--match", "[0-9]*")
    try:
        return git("describe", *told, "HEAD^", root=root)
    except NoCommit:
        return ""


def is_shallow(root: Path = ROOT) -> bool:
    """Whether history was cut off when this was cloned."""
    return git("rev-parse", "--is-shallow-repository", root=root) == "true"


def changed_files(root: Path = ROOT) -> list[str]:
    """Files that a measurement depends on and that are not as in the commit."""
    options = ("--porcelain", "-z", "--no-renames", "--untracked-files=all")
    told = git("status", *options, "--", *CODE, root=root)
    return [entry[3:] for entry in told.split("\0") if entry]


def fingerprint(root: Path = ROOT) -> str:
    """One word for the state of those files: the commit, and what differs from it."""
    commit = git("rev-parse", "HEAD", root=root)
    files = changed_files(root)
    if not files:
        return commit
    digest = hashlib.sha256()
    for name in files:
        file = root / name
        content = file.read_bytes() if file.is_file() else b""
        digest.update(name.encode() + b"\0" + content + b"\0")
    return f"{commit}+{digest.hexdigest()[:12]}"
