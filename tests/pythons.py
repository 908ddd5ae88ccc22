"""Pythons that are not what they seem: fake ones, and environments with parts lost."""

import subprocess
from pathlib import Path


def fake_python(path: Path, does: str = "exit 7") -> Path:
    """A program that runs a shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)
    return path


def environment_like(python: Path, folder: Path, *, without: str) -> Path:
    """The Python of an environment with the packages of `python`'s, but for one file.

    `without` is a path inside site-packages. Packages are links, nothing is copied.
    """
    command = [str(python), "-m", "venv", "--without-pip", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    (source,) = python.parent.parent.glob("lib/python*/site-packages")
    (target,) = folder.glob("lib/python*/site-packages")
    _link_all(source, target, Path(without).parts)
    return folder / "bin" / "python"


def _link_all(source: Path, target: Path, without: tuple[str, ...]) -> None:
    target.mkdir(exist_ok=True)
    for entry in source.iterdir():
        if entry.name != without[0]:
            (target / entry.name).symlink_to(entry)
        elif len(without) > 1:
            _link_all(entry, target / entry.name, without[1:])
