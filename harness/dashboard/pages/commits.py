"""Asks git for commits: subject, date, release. Empty outside a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.dashboard.series import Commit


def commits(root: Path) -> dict[str, Commit]:
    """All commits that HEAD or a tag can reach, by hash, oldest first."""
    tags = _tags(root)
    lines = _git(root, "log", "--all", "--reverse", "--format=%H%x1f%cI%x1f%s")
    by_hash = {}
    for line in lines.splitlines():
        name, date, subject = line.split("\x1f", 2)
        by_hash[name] = Commit(name, date, subject, tags.get(name, ""))
    return by_hash


def _tags(root: Path) -> dict[str, str]:
    """The names of tags, by commit."""
    fields = "%(objectname) %(*objectname) %(refname:short)"
    by_commit = {}
    for line in _git(
        root, "for-each-ref", "refs/tags", f"--format={fields}"
    ).splitlines():
        *objects, name = line.split()
        by_commit[objects[-1]] = name  # an annotated tag lists itself, then its commit
    return by_commit


def _git(root: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
