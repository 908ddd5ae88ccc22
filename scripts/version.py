"""Adds an environment with other versions to the history: `make version`.

    python scripts/version.py numpy==1.26.4

This makes .venv-numpy-1.26.4, and `asv run` measures it from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments import Unavailable, Uv

from gradwatch.harness.history.environments import (
    MAIN,
    WrongCall,
    environment_with,
    parsed,
)
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import ROOT
from gradwatch.impls.catalogue import UnknownName, backend_names, framework_of, known


def add(requirements: Sequence[str], python: str = MAIN, root: Path = ROOT) -> Path:
    """Make an environment, and an entry for it in asv.conf.json; return its folder.

    Raises:
        WrongCall: A version is not exact, or the package is not a framework.
        Unavailable: uv could not install it.
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
        try:
            asyncio.run(Uv(root).make(folder, python, *requirements))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    add_entry(root / "asv.conf.json", python, wanted)
    return folder


def add_entry(file: Path, python: str, wanted: Mapping[str, str]) -> None:
    """Add the entry with the threads of the others, if it is not there yet."""
    conf: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    threads = {name: v[0] for name, v in conf["matrix"]["env_nobuild"].items()}
    entry = {"python": python, "req": dict(wanted), "env_nobuild": threads}
    if entry not in conf["include"]:
        conf["include"].append(entry)
        replace_file(file, json.dumps(conf, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Add what is named."""
    parser = argparse.ArgumentParser(prog="python scripts/version.py")
    parser.add_argument("requirements", nargs="+", metavar="numpy==1.26.4")
    parser.add_argument("--python", default=MAIN, help="%(default)s by default")
    given = parser.parse_args(arguments)
    try:
        folder = add(given.requirements, given.python)
    except WrongCall as error:
        parser.error(str(error))
    except Unavailable as error:
        parser.exit(1, f"{error}\n")
    sys.stderr.write(f"{folder.name} is ready; `asv run` measures it, too\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
