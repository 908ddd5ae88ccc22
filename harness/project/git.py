"""Asks git about the checkout: commits, their order, and their files."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from gradwatch.harness.project.paths import PROJECT, ROOT, scratch

#: The files that a measurement depends on; changes of other files do not matter.
CODE = (*PROJECT.code, *PROJECT.instrument)

#: A remote at a code host: https://host/path.git, ssh://git@host/path, git@host:path.
_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://)?(?:[^@/\s]+@)?(?P<host>[\w-]+(?:[.][\w-]+)+)(?::\d+)?"
    r"[/:](?P<path>[\w.~-]+(?:/[\w.~-]+)+?)/?",
    re.ASCII,
)

#: Options that keep a user's configuration from changing the output that we parse.
_READABLE = ("-c", "log.showSignature=false", "-c", "i18n.logOutputEncoding=UTF-8")


class NoCommit(Exception):
    """The name is not a commit, or there is no checkout, or git is missing."""

    exit_code = 2


class NotTrusted(Exception):
    """The checkout belongs to another user, so git refuses to read it.

    This is not a `NoCommit`, so that it is never treated as a folder without history.
    """

    exit_code = 2


def git(*arguments: str, root: Path = ROOT) -> str:
    """Return the output of a git command for the checkout at `root`.

    Raises:
        NotTrusted: The checkout belongs to somebody else.
        NoCommit: It failed; the message is git's.
    """
    # The variables that git sets for its hooks would select another repository.
    kept = re.compile("(?!GIT_)|GIT_(CONFIG|CEILING|DISCOVERY|TEST)")
    environment = {k: v for k, v in os.environ.items() if kept.match(k)}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *_READABLE, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env={**environment, "LC_ALL": "C"},  # the messages are parsed
        )
    except FileNotFoundError:
        raise NoCommit("git is not installed") from None
    if not done.returncode:
        return done.stdout.decode(errors="replace").rstrip("\n")
    said = done.stderr.decode(errors="replace").strip().split("\n")
    if "dubious ownership" in said[0]:
        raise NotTrusted(
            f"the checkout {root} belongs to somebody else, so git does not read it; to"
            " allow it: git config --global --add safe.directory"
            f" {shlex.quote(str(root))}"
        )
    raise NoCommit(said[-1].removeprefix("fatal: ") or f"git {arguments[0]} failed")


def listed(*arguments: str, root: Path) -> list[str]:
    """Git's answer in parts, not lines: a name may hold another separator (U+2028)."""
    printed = git(*arguments, root=root)
    return printed.removesuffix("\0").split("\0") if printed else []


@contextlib.contextmanager
def checked_out(commit: str, root: Path = ROOT) -> Iterator[Path]:
    """Extract a commit's files into a folder that is removed at the end.

    Folders that killed processes left, whose locks are free, are removed first.
    """
    with scratch("checkout") as folder:
        tree, archive = folder / "tree", folder / "archive.tar"
        git("archive", "--format=tar", f"--output={archive}", commit, root=root)
        shutil.unpack_archive(archive, tree)
        archive.unlink()
        yield tree


def commit_of(name: str, root: Path = ROOT) -> str:
    """Return the hash of a commit.

    Raises:
        NoCommit: There is no commit of that name.
    """
    try:
        return git("rev-parse", "--verify", f"{name}^{{commit}}", root=root)
    except NoCommit:
        raise NoCommit(f"{name!r} is not a commit of this checkout") from None


def subject(commit: str, root: Path = ROOT) -> str:
    """The first line of a commit's message; "" if the commit is unknown."""
    try:
        return _printable(git("show", "-s", "--format=%s", commit, "--", root=root))
    except NoCommit:
        return ""


def _printable(text: str) -> str:
    # Without characters that control a terminal or change the writing direction.
    return "".join(filter(str.isprintable, text))


def commit_pages(root: Path = ROOT) -> str:
    """Return the address of commits at the code host, without the hash; or "".

    Only host and path are taken: a remote's address may hold a password.
    """
    try:
        remote = git("remote", "get-url", "origin", root=root)
    except NoCommit:
        return ""
    if parts := _REMOTE.fullmatch(remote):
        return f"https://{parts['host']}/{parts['path'].removesuffix('.git')}/commit/"
    return ""


def implementing(old: str, new: str, op: str, root: Path = ROOT) -> list[str]:
    """Return commits after `old` up to `new` that change the code of `op`, in order.

    Only commits on the first-parent line count: a branch counts as its merge. With "*"
    as the op, the pages of all ops count.
    """
    options = ("--first-parent", "--reverse", f"{old}..{new}")
    return git("rev-list", *options, "--", *PROJECT.files(op), root=root).split()


def commits(root: Path = ROOT) -> list[str]:
    """The commits that HEAD can reach, oldest first; empty outside a checkout."""
    try:
        return git("rev-list", "--reverse", "--topo-order", "HEAD", root=root).split()
    except NoCommit:
        return []


@dataclass(frozen=True)
class Commit:
    """A commit; `date` is ISO 8601, `tag` the name of its release or ""."""

    hash: str
    date: str
    subject: str = ""
    tag: str = ""


def log(root: Path = ROOT) -> dict[str, Commit]:
    """All commits of any branch or tag, by hash, oldest first; none as in `commits`."""
    order = ("--all", "--reverse", "--topo-order", "-z", "--format=%H%x00%cI%x00%s")
    try:
        tags = {commit: name for name, commit in releases(root).items()}
        fields = iter(listed("log", *order, root=root))
    except NoCommit:
        return {}
    return {
        name: Commit(name, date, _printable(subject), tags.get(name, ""))
        for name, date, subject in zip(fields, fields, fields, strict=True)
    }


def releases(root: Path = ROOT, upto: str = "") -> dict[str, str]:
    """The commits of all release tags, or of those that `upto` can reach.

    A release is a version by PEP 440, also with a v.
    """
    reached = [f"--merged={upto}"] if upto else []
    fields = "--format=%(objectname) %(*objectname) %(refname:lstrip=2)"
    lines = git("for-each-ref", *reached, "refs/tags", fields, root=root).split("\n")
    commits = {}
    for line in filter(None, lines):
        tag, marked, name = line.split(" ")
        version = name.removeprefix("v")
        with contextlib.suppress(InvalidVersion):
            Version(version)
            if version[:1].isdigit():  # PEP 440 allows a v of its own: not vv1
                commits[name] = marked or tag  # an annotated tag marks another object
    return commits


def newest_release(root: Path = ROOT) -> str:
    """The newest tag before HEAD that is a release; "" if there is none."""
    with contextlib.suppress(NoCommit):  # where no commit is before HEAD
        if matches := [f"--match={name}" for name in releases(root, "HEAD^")]:
            return git("describe", "--tags", "--abbrev=0", *matches, "HEAD^", root=root)
    return ""


def is_shallow(root: Path = ROOT) -> bool:
    """Whether this is a shallow clone."""
    return git("rev-parse", "--is-shallow-repository", root=root) == "true"


def changed_files(
    root: Path = ROOT, paths: Sequence[str] = CODE, untracked: str = "all"
) -> list[str]:
    """The files below some paths that differ from the commit.

    By default, the files that a measurement depends on. `untracked` says whether files
    that git does not know count: "all" or "no".
    """
    options = ("--porcelain", "-z", "--no-renames", f"--untracked-files={untracked}")
    return [one[3:] for one in listed("status", *options, "--", *paths, root=root)]
