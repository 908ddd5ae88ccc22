"""Finds environments by the versions that they have; scripts/version.py adds some.

"torch==1.12.1" names a version, and the environment of the checkout that has it. So
`gradwatch compare torch==1.12.1 torch==2.13.0` tells what an upgrade would change.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.workers.pythons.interpreters import Interpreter

MAIN = "3.11"  # Python of .venv, by default

# asv would read "<2" as "==2", so only exact versions are accepted.
_EXACT = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\d[\w.]*)")


class WrongCall(ValueError):
    """A version is not exact, or no backend needs the package."""


def environment_with(
    python: str, wanted: Mapping[str, str], root: Path = ROOT
) -> Path | None:
    """The environment of the checkout with this Python and exactly these versions.

    Raises:
        WrongCall: A version is not exact.
    """
    for name, version in wanted.items():
        parsed(f"{name}=={version}")
    if PROJECT.table and _is_running(python, wanted):
        return Path(sys.prefix)
    return next(environments_with(wanted, root, python), None)


def environments_with(
    wanted: Mapping[str, str], root: Path = ROOT, python: str = "*"
) -> Iterator[Path]:
    """The environments that have these versions; 2.13.0+cpu is a build of 2.13.0."""
    for folder in sorted(root.glob(".venv*")):
        for site in folder.glob(f"lib/python{python}/site-packages"):
            exact = all(
                (site / f"{name}-{version}.dist-info").is_dir()
                or any(site.glob(f"{name}-{version}+*.dist-info"))
                for name, version in wanted.items()
            )
            if exact and (folder / "bin" / "python").exists():
                yield folder


def _is_running(python: str, wanted: Mapping[str, str]) -> bool:
    """Whether that is what runs this: others' environments lie anywhere."""
    try:
        installed = {n: importlib.metadata.version(n).partition("+")[0] for n in wanted}
    except importlib.metadata.PackageNotFoundError:
        return False
    alike = platform.python_version().startswith(f"{python}.")
    return alike and installed == {**wanted}


def parsed(requirement: str) -> tuple[str, str]:
    """Split "numpy==1.26.4" into name and version.

    Raises:
        WrongCall: It does not have that form.
    """
    exact = _EXACT.fullmatch(requirement)
    if exact is None:
        raise WrongCall(f"{requirement!r} is not of the form numpy==1.26.4")
    return exact["name"], exact["version"]


def command_for(python: str, wanted: Mapping[str, str]) -> str:
    """The command that makes an environment with these versions."""
    packages = " ".join(f"{name}=={version}" for name, version in wanted.items())
    if PROJECT.table:
        return f"pip install {packages}, or change the matrix in asv.conf.json"
    other = "" if python == MAIN else f" PYTHON={python}"
    return f'make version WITH="{packages}"{other}'


def interpreter_with(requirement: str, root: Path = ROOT) -> Interpreter:
    """The Python of the environment that has exactly this version.

    Raises:
        WrongCall: The version is not exact, or no environment of the checkout has it.
    """
    name, version = parsed(requirement)
    for folder in environments_with({name: version}, root):
        return Interpreter(name, folder / "bin" / "python", f"{folder.name}/bin/python")
    raise WrongCall(
        f"no environment of the checkout has {requirement}; `make framework` or"
        f' `make version WITH="{requirement}"` makes one'
    )
