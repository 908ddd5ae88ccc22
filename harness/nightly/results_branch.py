"""Keeps the recorded results of nightly runs on a git branch of their own.

    python -m harness.nightly.results_branch fetch
    python -m harness.nightly.results_branch store

`fetch` copies recorded results into results/ and the previous report into nightly/; it
replaces no file. `store` adds the results of this checkout to the branch and pushes it;
if another run has pushed first, it adds to that. No result is ever removed.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.project.git import NoCommit, git
from harness.project.paths import ROOT

BRANCH = "results"
KEPT = ("results/asv", "results/confirmations", "results/findings")
NIGHT = "nightly/nightly.json"
TRIES = 3  # pushes: one fails only if another run pushes within the same seconds


def fetch(root: Path = ROOT, branch: str = BRANCH) -> int:
    """Copy the files that only the branch has; return their number."""
    with _tree(root, branch) as tree:
        return sum(
            _copy(file, root / file.relative_to(tree), replace=False)
            for file in _files(tree)
        )


def store(root: Path = ROOT, branch: str = BRANCH) -> bool:
    """Add the checkout's results to the branch and push; return whether any were new.

    Raises:
        NoCommit: The branch cannot be pushed.
    """
    for tried in range(TRIES):
        with _tree(root, branch) as tree:
            for file in _files(root):
                _copy(file, tree / file.relative_to(root), replace=True)
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
    with tempfile.TemporaryDirectory(prefix="gradwatch-") as folder:
        tree = Path(folder, "tree")
        git("worktree", "add", "--quiet", "--detach", str(tree), "HEAD", root=root)
        try:
            there = git("ls-remote", "origin", f"refs/heads/{branch}", root=root)
            if there:
                git("fetch", "--quiet", "origin", branch, root=tree)
                git("checkout", "--quiet", "--detach", "FETCH_HEAD", root=tree)
            else:
                git("checkout", "--quiet", "--orphan", branch, root=tree)
                git("rm", "-r", "-f", "--quiet", ".", root=tree)
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree), root=root)


def _files(root: Path) -> Iterator[Path]:
    for folder in KEPT:
        yield from (f for f in sorted((root / folder).rglob("*")) if f.is_file())
    if (root / NIGHT).exists():
        yield root / NIGHT


def _copy(file: Path, target: Path, *, replace: bool) -> bool:
    if target.exists() and not replace:
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, target)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch or store, and print the result."""
    parser = argparse.ArgumentParser(prog="python -m harness.nightly.results_branch")
    parser.add_argument("what", choices=["fetch", "store"])
    given = parser.parse_args(arguments)
    try:
        if given.what == "fetch":
            outcome = f"{fetch()} files of earlier nights"
        else:
            outcome = "stored" if store() else "nothing new to store"
    except (NoCommit, subprocess.SubprocessError) as error:
        parser.exit(1, f"results: {error}\n")
    sys.stderr.write(f"results: {outcome}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
