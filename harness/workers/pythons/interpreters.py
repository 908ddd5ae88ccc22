"""Finds the Python that runs each framework, and says what to do if there is none.

A framework with its own requirements (requirements/<framework>.txt) has its own
environment, .venv-<framework>; the others share the running one. Some are made only on
request: the head of their requirements says so, with what that costs. An environment
variable such as GRADWATCH_PYTHON_ONEFLOW names another Python, for example of conda or
of another build of the framework.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gradwatch.harness.project.machines import has_cuda as has_cuda
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.traits import traits_of

_PATIENCE = 30  # seconds for an interpreter to start: a cold disk is slow
_QUESTION = Path(__file__).with_name("question.py")


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


class Facts(msgspec.Struct):
    """What a Python says of itself.

    python: `sys.version`. numpy: its version, or "". frameworks: those of the ones
    asked for that are installed.
    """

    python: str
    numpy: str
    frameworks: list[str]


def variable(framework: str) -> str:
    """The environment variable that names another Python for a framework."""
    return f"GRADWATCH_PYTHON_{framework.upper()}"


def interpreter_of(framework: str, root: Path = ROOT) -> Interpreter:
    """The Python of a framework, examined without importing the framework."""
    return interpreters_of([framework], root)[framework]


def interpreters_of(
    frameworks: Sequence[str], root: Path = ROOT
) -> dict[str, Interpreter]:
    """The Pythons of frameworks; each Python is asked once, all at the same time."""
    placed = [_placed(name, root) for name in frameworks]
    there: dict[Path, list[str]] = {}
    for one in placed:
        if one.python.exists():
            there.setdefault(one.python, []).append(one.framework)
    with ThreadPoolExecutor(max(1, len(there))) as pool:
        said = {path: pool.submit(ask, path, names) for path, names in there.items()}
    answers = {path: one.exception() or one.result() for path, one in said.items()}
    return {one.framework: _examined(one, answers.get(one.python)) for one in placed}


def broken(interpreter: Interpreter, error: str) -> Interpreter:
    """The same interpreter, whose framework is installed but cannot be imported."""
    framework = interpreter.framework
    why = f"{framework} is installed but broken: {error}"
    return interpreter.to_install(why, f"--force-reinstall {framework}")


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


# What it has ----------------------------------------------------------------------


def ask(python: Path, frameworks: Sequence[str]) -> Facts:
    """What a Python has of these frameworks.

    None of it is imported, and one process answers for all: to start one takes longer.

    Raises:
        OSError, ValueError, subprocess.SubprocessError: It does not run.
    """
    done = subprocess.run(
        [python, _QUESTION, *frameworks],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
    )
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"exit status {done.returncode}")
    try:  # whatever a site's own start-up files print comes before
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=Facts)
    except (ValueError, IndexError):
        raise ValueError(f"it answers {done.stdout[:40]!r}") from None


def _examined(one: Interpreter, answer: Facts | BaseException | None) -> Interpreter:
    """An interpreter as its Python's answer shows it; None if there is no Python."""
    framework = one.framework
    if answer is None:
        return _absent(one)
    if isinstance(answer, BaseException):
        why = f"{one.shown} does not run ({_reason(answer)})"
        return one.to_install(why, f"--force-reinstall {framework}")
    limit = traits_of(framework).numpy_below
    if framework not in answer.frameworks:
        why = f"{framework} is not installed in {one.shown}"
        return one.to_install(why, f'"{framework}"')
    if not answer.numpy:
        return one.to_install(f"NumPy is not installed in {one.shown}", '"numpy"')
    if limit and int(answer.numpy.partition(".")[0]) >= limit:
        why = f"NumPy {answer.numpy} in {one.shown} is too new for {framework}"
        return one.to_install(why, f'"numpy<{limit}"')
    return one


def _reason(error: BaseException) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:g} s"
    if isinstance(error, OSError):
        return error.strerror or repr(error)
    return str(error).splitlines()[-1]
