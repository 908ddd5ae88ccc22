"""Copies of this project's code, in which tests change files."""

import shutil
from pathlib import Path

from gradwatch.harness.project.paths import ROOT

CODE = ("gradwatch", "harness", "impls")


def copy_code(root: Path, folders: tuple[str, ...] = CODE) -> None:
    """Copy packages with their bytecode, which fits as long as a file is unchanged."""
    for folder in folders:
        shutil.copytree(ROOT / folder, root / folder, dirs_exist_ok=True, symlinks=True)
