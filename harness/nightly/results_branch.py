"""Keeps the recorded results of nightly runs on a git branch of their own.

    python -m gradwatch.harness.nightly.results_branch fetch
    python -m gradwatch.harness.nightly.results_branch store

`fetch` copies recorded results into results/ and the previous report into nightly/; it
replaces no file. `store` adds the results of this checkout to the branch and pushes it;
if another run has pushed first, it adds to that. No result is ever removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gradwatch.harness.project.git import NoCommit, NotTrusted, checked_out, git
from gradwatch.harness.project.paths import ROOT

BRANCH = "results"
KEPT = ("results/asv", "results/confirmations", "results/findings")
NIGHT = "nightly/nightly.json"
TRIES = 3  # pushes: one fails only if another run pushes within the same seconds


def fetch(root: Path = ROOT, branch: str = BRANCH) -> int:
    """Copy the files that only the branch has; return their number."""
    with _tree(root, branch) as tree:
        inside = [file.relative_to(tree) for file in _files(tree)]
        fresh = [name for name in inside if not os.path.lexists(root / name)]
        for name in fresh:
            _copy(tree / name, root, name)
        return len(fresh)


def store(root: Path = ROOT, branch: str = BRANCH) -> bool:
    """Add the checkout's results to the branch and push; return whether any were new.

    Raises:
        NoCommit: The branch cannot be pushed.
    """
    for tried in range(TRIES):
        with _tree(root, branch) as tree:
            for file in _files(root):
                _copy(file, tree, file.relative_to(root))
            git("add", "--all", "--force", ".", root=tree)
            if not git("status", "--porcelain", root=tree):
                return False
            subject = git("rev-parse", "--short", "HEAD", root=root)
            git("commit", "--quiet", "-m", f"Results of {subject}", root=tree)
            try:
                git("push", "--quiet", "origin", f"HEAD:refs/heads/{branch}", root=tree)
            except NoCommit:
                if tried == TRIES - 1:
                    raise
            else:
                return True
    return False


@contextmanager
def _tree(root: Path, branch: str) -> Iterator[Path]:
    """A worktree of the branch as it is at origin; empty if there is no such branch."""
    with checked_out("HEAD", root) as tree:
        if git("ls-remote", "origin", f"refs/heads/{branch}", root=root):
            git("fetch", "--quiet", "origin", branch, root=tree)
            git("checkout", "--quiet", "--detach", "FETCH_HEAD", root=tree)
        else:
            git("checkout", "--quiet", "--orphan", branch, root=tree)
            git("rm", "-r", "-f", "--quiet", ".", root=tree)
        yield tree


def _files(root: Path) -> Iterator[Path]:
    """What is kept, below `root`: no links, and nothing hidden, which is temporary."""
    listed = [f for folder in KEPT for f in sorted((root / folder).rglob("*"))]
    for file in (*listed, root / NIGHT):
        inside = file.relative_to(root)
        hidden = any(part.startswith(".") for part in inside.parts)
        if file.is_file() and not hidden and not _linked(root, inside):
            yield file


def _linked(root: Path, inside: Path) -> bool:
    """Whether a file, or a folder on the way to it from `root`, is a symbolic link."""
    return any((root / part).is_symlink() for part in (inside, *inside.parents))


def _copy(file: Path, root: Path, inside: Path) -> None:
    """Copy a file to its place below `root`, and nowhere else.

    Raises:
        NoCommit: A link leads elsewhere.
    """
    if _linked(root, inside):
        raise NoCommit(f"{inside} is a symbolic link, or lies behind one: not written")
    (root / inside).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, root / inside)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch or store, and print the result."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.results_branch")
    parser.add_argument("what", choices=["fetch", "store"])
    given = parser.parse_args(arguments)
    try:
        if given.what == "fetch":
            outcome = f"{fetch()} files of earlier nights"
        else:
            outcome = "stored" if store() else "nothing new to store"
    except (NoCommit, NotTrusted) as error:
        parser.exit(1, f"results: {error}\n")
    sys.stderr.write(f"results: {outcome}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
