"""Finds the Python that runs each framework, and says what to do if there is none.

A framework with its own requirements (requirements/<framework>.txt, whose head may
state its cost) has its own environment, .venv-<framework>; the others share the running
one. An environment variable such as GRADWATCH_PYTHON_ONEFLOW names another Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass, replace
from importlib.metadata import packages_distributions
from pathlib import Path

from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.traits import traits_of

_LACKS = "ModuleNotFoundError: No module named {!r}"


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
        """The reason why it cannot be used, and the command that fixes it."""
        return f"{self.why_missing}; to fix it: {self.mend}"

    def lacking(self, why: str, mend: str = "", package: str = "") -> Interpreter:
        """A copy that cannot be used, with the fix: our environments are made again."""
        folder, framework = self.python.parent.parent, self.framework
        if package and folder.parent == self.root and folder.name.startswith(".venv"):
            asked = on_request(framework, self.root)
            makes = f"framework NAME={framework}" if asked else "environments"
            mend = "" if PROJECT.table else f"rm -rf {folder.name} && make {makes}"
        if not mend:
            named = os.environ.get(variable(framework), "python")
            mend = f"{named} -m pip install {package}"
        why = why.replace(f"{self.root}{os.sep}", "")
        return replace(self, why_missing=why, mend=mend)


def variable(framework: str) -> str:
    """The environment variable that names another Python for a framework."""
    return f"GRADWATCH_PYTHON_{framework.upper()}"


def interpreter_of(framework: str, root: Path = ROOT) -> Interpreter:
    """The Python of a framework; only its worker finds out whether it can import it.

    A framework that the running Python lacks is found missing without a worker.
    """
    one = _placed(framework, root)
    if not one.python.exists():
        return _absent(one)
    if one.python == Path(sys.executable):
        # A removed framework may leave a folder without __init__, which has no loader;
        # nor has an installed namespace package (such as MLX).
        spec = importlib.util.find_spec(framework)
        if not (spec and (spec.loader or framework in packages_distributions())):
            return broken(one, _LACKS.format(framework))
    return one


def broken(one: Interpreter, error: str) -> Interpreter:
    """A copy for a worker that could not import the framework, or did not start."""
    framework, below = one.framework, traits_of(one.framework).numpy_below
    if error == _LACKS.format(framework):
        why = f"{framework} is not installed in {one.shown}"
        return one.lacking(why, package=f'"{framework}"')
    why = f"{framework} does not run in {one.shown}: {error}"
    numpy = f'"numpy<{below}"' if below else '"numpy"'
    package = numpy if "numpy" in error.lower() else f"--force-reinstall {framework}"
    return one.lacking(why, package=package)


def on_request(framework: str, root: Path = ROOT) -> str:
    """The cost of an environment that is made only on request; "" for the others."""
    with contextlib.suppress(OSError):
        head = (root / "requirements" / f"{framework}.txt").read_text(encoding="utf-8")
        if found := re.search(r"^# On request: (.+)$", head, re.MULTILINE):
            return found[1]
    return ""


# Its path -------------------------------------------------------------------------


def _placed(framework: str, root: Path) -> Interpreter:
    """The place of the framework's Python, whether it exists or not."""
    if named := os.environ.get(variable(framework)):
        python = Path(named).expanduser().absolute()
        return Interpreter(framework, python, named, root=root)
    shown = PROJECT.python.get(framework, "")
    if not (shown or PROJECT.table):
        if (root / "requirements" / f"{framework}.txt").is_file():
            shown = f".venv-{framework}/bin/python"
        elif Path(sys.prefix).name.startswith(".venv-"):  # asv may run us in one
            shown = ".venv/bin/python"
    if shown:
        return Interpreter(framework, root / shown, shown, root=root)
    inside = sys.executable.replace(f"{root}{os.sep}", "")
    here = "the running Python" if inside == sys.executable else inside
    return Interpreter(framework, Path(sys.executable), here, root=root)


def _absent(one: Interpreter) -> Interpreter:
    """A copy for an interpreter that does not exist, with the command to make it."""
    framework, environment = one.framework, one.python.parent.parent.name
    named = "pyproject.toml"
    mend = "change [tool.gradwatch] python, or make that environment"
    if os.environ.get(variable(framework)):
        named = variable(framework)
        mend = f"set it to a Python that has {framework}, or unset it"
    if PROJECT.table or named != "pyproject.toml":
        return one.lacking(f"{named} names {one.shown}, which is not there", mend)
    if one.python.is_symlink():
        why = f"{one.shown} does not run (the Python it was made from is gone)"
        return one.lacking(why, package=f"--force-reinstall {framework}")
    if cost := on_request(framework, one.root):
        make = f"make framework NAME={framework}"
        return one.lacking(f"made only on request ({cost})", make)
    return one.lacking(f"{environment} has not been made", "make environments")
