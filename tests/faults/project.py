"""A small repository of this project's code: three ops, and NumPy's backends."""

from __future__ import annotations

import shutil
from pathlib import Path

from gradwatch.harness.project.paths import ROOT
from tests.histories import git

OPS = ("add", "dot", "square")
_COPIED = ("asv.conf.json", "benchmarks", "gradwatch", "harness", "impls", ".gitignore")


def made(folder: Path) -> Path:
    """The repository, with one commit; what NumPy alone can measure takes seconds."""
    root = folder / "project"
    root.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, symlinks=True)
        else:
            shutil.copy(source, root / name)
    for page in (root / "impls" / "ops").glob("[!_]*.py"):
        if page.stem not in OPS:
            page.unlink()
    for page in (root / "impls" / "backends").glob("[!_]*.py"):
        if not page.stem.startswith("numpy"):
            page.unlink()
    for environment in ROOT.glob(".venv*"):
        (root / environment.name).symlink_to(environment)
    git(root, "init", "-q", "-b", "main")
    for number in range(2):
        (root / "notes.txt").write_text(f"{number}\n")
        git(root, "add", "-A", ":!.venv*")
        git(root, "commit", "-q", "-m", f"commit {number}")
    return root
