"""Finds the environment that has exactly the versions of an entry of asv's matrix."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from gradwatch.harness.project.paths import PROJECT, ROOT

_EXACT = re.compile(r"\d[\w.]*")  # asv would read "<2" as "==2"


def environment_with(
    python: str, wanted: Mapping[str, str], root: Path = ROOT
) -> Path | None:
    """The environment of the checkout with this Python and exactly these versions.

    2.13.0+cpu is a build of 2.13.0.

    Raises:
        ValueError: A version is not exact.
    """
    for name, version in wanted.items():
        if not _EXACT.fullmatch(version):
            raise ValueError(f"{name} {version!r} is no version such as 1.26.4")
    if PROJECT.table and _is_running(python, wanted):
        return Path(sys.prefix)
    for site in sorted(root.glob(f".venv*/lib/python{python}/site-packages")):
        exact = all(
            (site / f"{name}-{version}.dist-info").is_dir()
            or any(site.glob(f"{name}-{version}+*.dist-info"))
            for name, version in wanted.items()
        )
        if exact and (site.parents[2] / "bin" / "python").exists():
            return site.parents[2]
    return None


def _is_running(python: str, wanted: Mapping[str, str]) -> bool:
    """Whether that is what runs this: others' environments lie anywhere."""
    try:
        installed = {n: importlib.metadata.version(n).partition("+")[0] for n in wanted}
    except importlib.metadata.PackageNotFoundError:
        return False
    alike = platform.python_version().startswith(f"{python}.")
    return alike and installed == {**wanted}
