"""Finds the Python that runs each framework, and says what to do if there is none.

A framework with its own requirements (requirements/<framework>.txt) has its own
environment, .venv-<framework>; the others share the running one. Some are made only on
request: the head of their requirements says so, with what that costs. An environment
variable such as GRADWATCH_PYTHON_ONEFLOW names another Python, for example of conda or
of another build of the framework.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from pathlib import Path

from gradwatch.harness.project.machines import has_cuda as has_cuda
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.traits import traits_of


@dataclass(frozen=True)
class Interpreter:
    """A Python for a framework; `why_missing` is empty if it can be used.

    `shown` is its name in messages; `mend` is the command that fixes it; `root` is the
    checkout, to which paths in messages are relative: these may be published.
    """

    framework: str
    python: Path
    shown: str
    why_missing: str = ""
    mend: str = ""
    root: Path = ROOT

    @property
    def explained(self) -> str:
        """Why it cannot be used, and what to do about it."""
        return f"{self.why_missing}; to fix it: {self.mend}"

    def without(self, why: str, mend: str) -> Interpreter:
        """The same one, which cannot be used."""
        why = why.replace(f"{self.root}{os.sep}", "")
        return replace(self, why_missing=why, mend=mend)

    def to_install(self, why: str, package: str) -> Interpreter:
        """The same one, whose package is missing or broken; ours is made again."""
        folder = self.python.parent.parent
        ours = folder.parent == self.root and folder.name.startswith(".venv")
        if ours and not PROJECT.table:
            asked = on_request(self.framework, self.root)
            makes = f"framework NAME={self.framework}" if asked else "environments"
            return self.without(why, f"rm -rf {folder.name} && make {makes}")
        named = os.environ.get(variable(self.framework), "python")
        return self.without(why, f"{named} -m pip install {package}")


def variable(framework: str) -> str:
    """The environment variable that names another Python for a framework."""
    return f"GRADWATCH_PYTHON_{framework.upper()}"


def interpreter_of(framework: str, root: Path = ROOT) -> Interpreter:
    """The Python of a framework, which is not imported: its worker says if it can be.

    What the running Python lacks is known without one.
    """
    one = _placed(framework, root)
    if not one.python.exists():
        return _absent(one)
    if one.python == Path(sys.executable) and not _is_here(framework):
        return not_installed(one)
    return one


def _is_here(package: str) -> bool:
    """Whether the running Python can import a package.

    A removed one may leave a folder without __init__, which has no loader, as an
    installed namespace has none (MLX is one).
    """
    spec = importlib.util.find_spec(package)
    return bool(spec and (spec.loader or package in packages_distributions()))


def not_installed(one: Interpreter) -> Interpreter:
    """The same one, which lacks its framework."""
    why = f"{one.framework} is not installed in {one.shown}"
    return one.to_install(why, f'"{one.framework}"')


def broken(one: Interpreter, error: str) -> Interpreter:
    """The same one, whose worker could not import the framework, or did not start."""
    framework, below = one.framework, traits_of(one.framework).numpy_below
    if error == f"ModuleNotFoundError: No module named {framework!r}":
        return not_installed(one)
    started = not error.startswith(one.shown)  # else it is its worker that says so
    why = f"{framework} is installed but broken: {error}" if started else error
    numpy = f'"numpy<{below}"' if below else '"numpy"'
    package = numpy if "numpy" in error.lower() else f"--force-reinstall {framework}"
    return one.to_install(why, package)


def on_request(framework: str, root: Path = ROOT) -> str:
    """What an environment costs that is made only on request; "" for the others."""
    with contextlib.suppress(OSError):
        head = (root / "requirements" / f"{framework}.txt").read_text(encoding="utf-8")
        if found := re.search(r"^# On request: (.+)$", head, re.MULTILINE):
            return found[1]
    return ""


# Where it is ----------------------------------------------------------------------


def _placed(framework: str, root: Path) -> Interpreter:
    """The place of the framework's Python, whether it exists or not."""
    if named := os.environ.get(variable(framework)):
        python = Path(named).expanduser().absolute()
        return Interpreter(framework, python, named, root=root)
    own = (root / "requirements" / f"{framework}.txt").is_file()
    apart = Path(sys.prefix).name.startswith(".venv-")  # asv may run us in one of these
    shown = PROJECT.python.get(framework, "")
    if own and not (shown or PROJECT.table):
        shown = f".venv-{framework}/bin/python"
    elif apart and not (shown or PROJECT.table):
        shown = ".venv/bin/python"
    if shown:
        return Interpreter(framework, root / shown, shown, root=root)
    inside = sys.executable.replace(f"{root}{os.sep}", "")
    here = "the running Python" if inside == sys.executable else inside
    return Interpreter(framework, Path(sys.executable), here, root=root)


def _absent(one: Interpreter) -> Interpreter:
    """The interpreter does not exist: its environment was not or could not be made."""
    framework, environment = one.framework, one.python.parent.parent.name
    if os.environ.get(variable(framework)):
        why = f"{variable(framework)} names {one.shown}, which is not there"
        mend = f"set it to a Python that has {framework}, or unset it"
        return one.without(why, mend)
    if PROJECT.table:
        why = f"pyproject.toml names {one.shown}, which is not there"
        mend = "change [tool.gradwatch] python, or make that environment"
        return one.without(why, mend)
    if one.python.is_symlink():
        why = f"{one.shown} does not run (the Python it was made from is gone)"
        return one.to_install(why, f"--force-reinstall {framework}")
    make = f"make framework NAME={framework}"
    if cost := on_request(framework, one.root):
        return one.without(f"made only on request ({cost})", make)
    note = one.root / ".uv" / f"{framework}-skipped.json"
    try:  # scripts/environments.py leaves word of what it could not make, and why
        reason = str(json.loads(note.read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return one.without(f"{environment} has not been made", "make environments")
    return one.without(f"{environment} could not be made: {reason}", make)
