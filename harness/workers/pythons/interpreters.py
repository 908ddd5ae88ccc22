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
from functools import partial
from pathlib import Path

from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.pythons.asking import Facts, ask


@dataclass(frozen=True)
class Interpreter:
    """A Python for a framework; `why_missing` is empty if it can be used.

    `shown` is its name in messages; `mend` is the command that fixes it.
    """

    framework: str
    python: Path
    shown: str
    why_missing: str = ""
    mend: str = ""

    @property
    def explained(self) -> str:
        """Why it cannot be used, and what to do about it."""
        return f"{self.why_missing}; to fix it: {self.mend}"


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
    return {one.framework: one for one, _ in _all_examined(frameworks, root)}


def _all_examined(
    frameworks: Sequence[str], root: Path = ROOT, *, contents: bool = False
) -> list[tuple[Interpreter, Facts | None]]:
    """The Pythons of frameworks, and what each says; None where there is none."""
    placed = [_placed(name, root) for name in frameworks]
    there: dict[Path, list[str]] = {}
    for one in placed:
        if one.python.exists():
            there.setdefault(one.python, []).append(one.framework)
    ask_it = partial(_answer, contents=contents)
    with ThreadPoolExecutor(max(1, len(there))) as pool:
        answers = dict(zip(there, pool.map(ask_it, there, there.values()), strict=True))
    return [_examined(one, answers.get(one.python), root) for one in placed]


def _answer(
    python: Path, frameworks: Sequence[str], *, contents: bool
) -> Facts | Exception:
    try:
        return ask(python, frameworks, contents=contents)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return error


def broken(interpreter: Interpreter, error: str, root: Path = ROOT) -> Interpreter:
    """The same interpreter, whose framework is installed but cannot be imported."""
    why = f"{interpreter.framework} is installed but broken: {_inside(error, root)}"
    return _broken(interpreter, why, root)


def on_request(framework: str, root: Path = ROOT) -> str:
    """What an environment costs that is made only on request; "" for the others."""
    with contextlib.suppress(OSError):
        head = (root / "requirements" / f"{framework}.txt").read_text(encoding="utf-8")
        if found := re.search(r"^# On request: (.+)$", head, re.MULTILINE):
            return found[1]
    return ""


def _placed(framework: str, root: Path) -> Interpreter:
    """The place of the framework's Python, whether it exists or not."""
    named = os.environ.get(variable(framework))
    if named:
        return Interpreter(framework, Path(named).expanduser().absolute(), named)
    if framework in PROJECT.python:
        shown = PROJECT.python[framework]
        return Interpreter(framework, root / shown, shown)
    if _environment(framework, root) != ".venv":
        return _within(framework, root, _environment(framework, root))
    apart = Path(sys.prefix).name.startswith(".venv-")  # asv may run us in one of these
    if apart and not PROJECT.table:
        return _within(framework, root, ".venv")
    shown = _inside(sys.executable, root)
    here = "the running Python" if shown == sys.executable else shown
    return Interpreter(framework, Path(sys.executable), here)


def _environment(framework: str, root: Path) -> str:
    own = (root / "requirements" / f"{framework}.txt").is_file()
    return f".venv-{framework}" if own and not PROJECT.table else ".venv"


def _within(framework: str, root: Path, environment: str) -> Interpreter:
    python = root / environment / "bin" / "python"
    return Interpreter(framework, python, f"{environment}/bin/python")


def _absent(interpreter: Interpreter, root: Path) -> Interpreter:
    """The interpreter does not exist: its environment was not or could not be made."""
    if os.environ.get(variable(interpreter.framework)):
        named = variable(interpreter.framework)
        why = f"{named} names {interpreter.shown}, which is not there"
        mend = f"set it to a Python that has {interpreter.framework}, or unset it"
        return replace(interpreter, why_missing=why, mend=mend)
    if PROJECT.table:
        why = f"pyproject.toml names {interpreter.shown}, which is not there"
        mend = "change [tool.gradwatch] python, or make that environment"
        return replace(interpreter, why_missing=why, mend=mend)
    environment = interpreter.python.parent.parent.name
    if interpreter.python.is_symlink():
        why = f"{interpreter.shown} does not run (the Python it was made from is gone)"
        return _broken(interpreter, why, root)
    if cost := on_request(interpreter.framework, root):
        why = f"{environment} is made only on request ({cost})"
        mend = f"make framework NAME={interpreter.framework}"
        return replace(interpreter, why_missing=why, mend=mend)
    note = root / ".uv" / f"{interpreter.framework}-skipped.json"
    try:  # scripts/environments.py leaves word of what it could not make, and why
        reason = str(json.loads(note.read_text(encoding="utf-8"))["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        why, mend = f"{environment} has not been made", "make environments"
    else:
        why = f"{environment} could not be made: {reason}"
        mend = f"make framework NAME={interpreter.framework}"
    return replace(interpreter, why_missing=why, mend=mend)


def _examined(
    interpreter: Interpreter, answer: Facts | Exception | None, root: Path
) -> tuple[Interpreter, Facts | None]:
    """An interpreter as its Python's answer shows it; None if there is no Python."""
    if answer is None:
        return _absent(interpreter, root), None
    if isinstance(answer, Facts):
        return _fitting(interpreter, answer, root), answer
    why = f"{interpreter.shown} does not run ({_inside(_reason(answer), root)})"
    return _broken(interpreter, why, root), None


def _fitting(interpreter: Interpreter, facts: Facts, root: Path) -> Interpreter:
    framework = interpreter.framework
    limit = traits_of(framework).numpy_below
    if framework not in facts.frameworks:
        why = f"{framework} is not installed in {interpreter.shown}"
        return _lacking(interpreter, why, f'"{framework}"', root)
    if not facts.numpy:
        why = f"NumPy is not installed in {interpreter.shown}"
        return _lacking(interpreter, why, '"numpy"', root)
    if limit and int(facts.numpy.partition(".")[0]) >= limit:
        why = f"NumPy {facts.numpy} in {interpreter.shown} is too new for {framework}"
        return _lacking(interpreter, why, f'"numpy<{limit}"', root)
    return interpreter


def _lacking(
    interpreter: Interpreter, why: str, package: str, root: Path
) -> Interpreter:
    """A package is missing; our own environments are made again."""
    if _is_ours(interpreter, root):
        return _broken(interpreter, why, root)
    return replace(
        interpreter, why_missing=why, mend=f"{_pip(interpreter)} install {package}"
    )


def _broken(interpreter: Interpreter, why: str, root: Path) -> Interpreter:
    mend = f"{_pip(interpreter)} install --force-reinstall {interpreter.framework}"
    if _is_ours(interpreter, root):
        asked = on_request(interpreter.framework, root)
        makes = f"framework NAME={interpreter.framework}" if asked else "environments"
        mend = f"rm -rf {interpreter.python.parent.parent.name} && make {makes}"
    return replace(interpreter, why_missing=why, mend=mend)


def _pip(interpreter: Interpreter) -> str:
    named = os.environ.get(variable(interpreter.framework))
    return f"{named or 'python'} -m pip"


def _is_ours(interpreter: Interpreter, root: Path) -> bool:
    """Whether it is an environment that `make environments` makes."""
    folder = interpreter.python.parent.parent
    return (
        not PROJECT.table and folder.parent == root and folder.name.startswith(".venv")
    )


def _inside(text: str, root: Path) -> str:
    """Text with paths relative to the checkout: messages may be published."""
    return text.replace(f"{root}{os.sep}", "")


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:g} s"
    if isinstance(error, OSError):
        return error.strerror or repr(error)
    return str(error).splitlines()[-1]


# What is installed --------------------------------------------------------------


@dataclass(frozen=True)
class Installed:
    """What a framework would run on: an interpreter, or the reason why there is none.

    facts: versions and hashes, as JSON. unlisted: distributions that can change unseen.
    """

    facts: str = ""
    unlisted: tuple[str, ...] = ()
    why_missing: str = ""


def installed(frameworks: Sequence[str]) -> dict[str, Installed]:
    """What is installed for each framework; nothing of it is imported."""
    return {
        one.framework: _contents(facts, one)
        if facts and not one.why_missing
        else Installed("", (), f"{one.why_missing}; {one.mend}")
        for one, facts in _all_examined(frameworks, contents=True)
    }


def _contents(facts: Facts, one: Interpreter) -> Installed:
    said = {"python": facts.python, "libc": facts.libc, "installed": facts.installed}
    hashed = json.dumps(said, sort_keys=True)
    return Installed(hashed, tuple(facts.unlisted))


def has_cuda() -> bool:
    """Whether this machine has a CUDA driver, found without starting it."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()
