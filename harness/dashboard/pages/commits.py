"""What git knows of commits: subject, date, release. Nothing, outside a checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.dashboard.series import Commit


def commits(root: Path) -> dict[str, Commit]:
    """All commits that HEAD or a tag reaches, by hash, oldest first."""
    tags = _tags(root)
    lines = _git(root, "log", "--all", "--reverse", "--format=%H%x1f%cI%x1f%s")
    found = {}
    for line in lines.splitlines():
        name, date, subject = line.split("\x1f", 2)
        found[name] = Commit(name, date, subject, tags.get(name, ""))
    return found


def _tags(root: Path) -> dict[str, str]:
    """Names of tags by the commit that they mark."""
    told = "%(objectname) %(*objectname) %(refname:short)"
    found = {}
    for line in _git(
        root, "for-each-ref", "refs/tags", f"--format={told}"
    ).splitlines():
        *objects, name = line.split()
        found[objects[-1]] = name  # of an annotated tag the second is the commit
    return found


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
