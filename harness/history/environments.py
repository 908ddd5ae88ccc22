"""Finds environments by their versions, and adds new ones to the history.

    python -m gradwatch.harness.history.environments numpy==1.26.4

This makes .venv-numpy-1.26.4, and `asv run` measures it from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import json
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.impls.catalogue import UnknownName, backend_names, framework_of, known

MAIN = "3.11"  # Python of .venv, by default

# asv would read "<2" as "==2", so only exact versions are accepted.
_EXACT = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>\d[\w.]*)")


class WrongCall(ValueError):
    """A version is not exact, or no backend needs the package."""


class NotMade(Exception):
    """The environment could not be made; the message says why."""


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


def add(requirements: Sequence[str], python: str = MAIN, root: Path = ROOT) -> Path:
    """Make an environment, and an entry for it in asv.conf.json; return its folder.

    Raises:
        WrongCall: A version is not exact, or the package is not a framework.
        NotMade: uv could not install it.
    """
    wanted = dict(map(parsed, requirements))
    frameworks = {framework_of(backend) for backend in backend_names()}
    for name in wanted:
        try:
            known("framework", name, frameworks)
        except UnknownName as error:
            raise WrongCall(str(error)) from None
    folder = environment_with(python, wanted, root)
    if folder is None:
        folder = root / f".venv-{'-'.join(f'{n}-{v}' for n, v in wanted.items())}"
        _install(folder, python, requirements, root)
    _add_entry(root / "asv.conf.json", python, wanted)
    return folder


def _install(
    folder: Path, python: str, requirements: Sequence[str], root: Path
) -> None:
    """Install with uv, found and configured as in `make environments`."""
    environments: Any = importlib.import_module("scripts.environments")
    try:
        asyncio.run(environments.Uv(root).make(folder, python, *requirements))
    except BaseException as problem:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(problem, environments.Unavailable):
            raise NotMade(str(problem)) from None
        raise


def _add_entry(file: Path, python: str, wanted: Mapping[str, str]) -> None:
    """Add the entry with the threads of the others, if it is not there yet."""
    conf: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    threads = {name: v[0] for name, v in conf["matrix"]["env_nobuild"].items()}
    entry = {"python": python, "req": dict(wanted), "env_nobuild": threads}
    if entry not in conf["include"]:
        conf["include"].append(entry)
        replace_file(file, json.dumps(conf, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command of `make version`."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.environments")
    parser.add_argument("requirements", nargs="+", metavar="numpy==1.26.4")
    parser.add_argument("--python", default=MAIN, help="%(default)s by default")
    given = parser.parse_args(arguments)
    try:
        folder = add(given.requirements, given.python)
    except WrongCall as error:
        parser.error(str(error))
    except NotMade as error:
        parser.exit(1, f"{error}\n")
    sys.stderr.write(f"{folder.name} is ready; `asv run` measures it, too\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
