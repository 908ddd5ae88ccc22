#!/usr/bin/env python3
"""Make the environments of this checkout, if they are not made yet.

    .venv             Python 3.11: PyTorch, and everything that the project needs
    .venv-FRAMEWORK   a framework with requirements of its own, for its workers

uv finds or fetches the interpreters and installs the packages. Nothing is done to an
environment whose stamp has the same inputs. A new one is made in another folder and
moved when it is complete, so a run that fails or is interrupted leaves the old one
unchanged. The frameworks are optional: if one cannot be installed, one line says why.

Standard library only, Python 3.8 or later: this runs before there is an environment.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.8"  # installed if there is no uv on PATH
OLDEST_UV = (0, 5)  # earlier versions lack options used below
EVERY = 10  # seconds between lines of progress

# pip's settings and their names in uv, which reads none of pip's, with uv's separator
# between several values; pip's is white space.
PIP_TO_UV = {
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


@dataclass(frozen=True)
class Framework:
    """A framework with requirements/<name>.txt; see `FRAMEWORKS`."""

    title: str
    python: str  # version
    asked_for: bool = False  # made only on request


FRAMEWORKS = {
    "oneflow": Framework("OneFlow", "3.10"),
    "jax": Framework("JAX", "3.11"),
    "paddle": Framework("Paddle", "3.11", asked_for=True),
    "mlx": Framework("MLX", "3.11", asked_for=True),
    "tensorflow": Framework("TensorFlow", "3.11", asked_for=True),
}


class Unavailable(Exception):
    """A requirement is not available; the message is one line with the remedy."""


def tell(line: str) -> None:
    """Print progress on standard error; standard output stays free."""
    print(line, file=sys.stderr, flush=True)


def answer(command: Sequence[object], patience: float = 30) -> str:
    """Return the output of a command, or "" if it cannot run or fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=patience,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# --- uv --------------------------------------------------------------------------


def search_path() -> str:
    """Return PATH with every version of pyenv's in place of its shims.

    A shim exists for every version, fails for those that are not selected, and uv
    stops at the first that fails.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    folders = os.environ.get("PATH", "").split(os.pathsep)
    kept = [folder for folder in folders if Path(folder) != pyenv / "shims"]
    versions = [str(folder) for folder in pyenv.glob("versions/*/bin")]
    return os.pathsep.join([*kept, *sorted(versions, reverse=True)])


def pip_settings(python: str) -> dict[str, str]:
    """Return pip's settings from its variables or else its files, by option name."""
    lines = answer([python, "-m", "pip", "config", "list"]).splitlines()
    listed = dict(line.split("=", 1) for line in lines if "=" in line)
    settings = {}
    for name in PIP_TO_UV:
        value = os.environ.get("PIP_" + name.upper().replace("-", "_"), "")
        for section in ("install", "global"):  # the order in which pip looks
            value = value or ast.literal_eval(listed.get(f"{section}.{name}", "''"))
        settings[name] = value
    return settings


def python_with_pip() -> str:
    """Return an interpreter that has pip, or ""; Debian's python3 has none."""
    names = ("python3.11", "python3.10", "python3.12", "python3")
    others = (shutil.which(name, path=search_path()) for name in names)
    candidates = filter(None, (sys.executable, *others))
    return next((p for p in candidates if answer([p, "-m", "pip", "--version"])), "")


def uv_variables(root: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of uv: it looks where pip does, and writes in `root`.

    A variable of uv that the user has set is kept.
    """
    ours = {
        "UV_PYTHON_INSTALL_DIR": str(root / ".uv" / "python"),
        "UV_PYTHON_INSTALL_BIN": "0",  # no link in the user's home
    }
    if sys.dont_write_bytecode:  # each import of torch would compile it again: 1.1 s
        ours["UV_COMPILE_BYTECODE"] = "1"
    for name, (variable, separator) in PIP_TO_UV.items():
        if settings.get(name):
            ours[variable] = separator.join(settings[name].split())
    if "UV_INDEX" in ours:
        # pip takes the best version of all indexes, uv that of the first one only
        ours["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {**ours, **os.environ, "PATH": search_path()}


def find_uv(root: Path) -> str:
    """Return uv from PATH, else from the checkout, else installed there with pip.

    Raises:
        Unavailable: there is neither a recent uv nor a pip to install it with.
    """
    own = root / ".uv" / "bin" / "uv"
    for file in filter(None, (shutil.which("uv"), str(own))):
        numbers = re.match(r"uv (\d+)\.(\d+)", answer([file, "--version"]))
        if numbers and tuple(map(int, numbers.groups())) >= OLDEST_UV:
            return file
    hint = "install uv, or pip for python3 (Debian: python3-pip), and run make again"
    python = python_with_pip()
    if not python:
        raise Unavailable(f"neither uv nor pip is on this machine; {hint}")
    tell(f"uv: installing {UV} into {own.parents[1].name}")
    pip = [python, "-m", "pip", "install", "--quiet", "--upgrade"]
    command = [*pip, "--target", str(own.parents[1]), UV]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode or not answer([own, "--version"]):
        raise Unavailable(
            f"pip cannot install uv: {done.stderr.strip()[-200:]}; {hint}"
        )
    return str(own)


class Uv:
    """uv with its settings for a checkout.

    Raises:
        Unavailable: see `find_uv`.
    """

    def __init__(self, root: Path) -> None:
        self.program = find_uv(root)
        self.variables = uv_variables(root, pip_settings(python_with_pip()))

    def run(self, name: str, *arguments: object) -> None:
        """Run it for the environment `name`, with a line of progress at times.

        Raises:
            Unavailable: it failed; the message has its error, and the last cause.
        """
        what = " ".join(word for word in map(str, arguments[:2]) if word.isalpha())
        begun = time.monotonic()
        process = subprocess.Popen(
            [self.program, *map(str, arguments)],
            env=self.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        said = None
        try:
            while said is None:
                try:
                    _, said = process.communicate(timeout=EVERY)
                except subprocess.TimeoutExpired:
                    tell(f"{name}: uv {what}, {time.monotonic() - begun:.0f} s")
        finally:
            if process.poll() is None:  # such as at an interrupt
                process.terminate()
                process.wait()
        if process.returncode in (-signal.SIGINT, -signal.SIGTERM, 130):
            raise KeyboardInterrupt  # the interrupt has reached uv first
        if process.returncode:
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            errors = [line for line in lines if line.startswith("error")]
            quoted = dict.fromkeys((*errors[:1], *lines[-1:]))  # each once
            raise Unavailable(": ".join((f"`uv {what}` failed", *quoted)))

    def make(self, folder: Path, python: str, *packages: object) -> None:
        """Make an environment in `folder`, with the arguments of `uv pip install`.

        Raises:
            Unavailable: there is no such Python, or a package cannot be installed.
        """
        name = folder.name.replace(".new", "")
        try:
            self.run(name, "venv", "--relocatable", "--python", python, folder)
        except Unavailable as problem:
            raise Unavailable(
                f"no Python {python} on this machine, and none could be fetched; "
                f"install one (`uv python install {python}`, `pyenv install {python}` "
                f"or your system's python{python}) and run make again ({problem})"
            ) from None
        where = ("--python", folder / "bin" / "python")
        self.run(name, "pip", "install", *where, *packages)


# --- environments ----------------------------------------------------------------


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the checkout; the main one has no framework's name."""

    root: Path
    framework: str = ""

    @property
    def folder(self) -> Path:
        """The folder of the environment."""
        return self.root / (f".venv-{self.framework}" if self.framework else ".venv")

    @property
    def python(self) -> str:
        """The version of its Python."""
        return FRAMEWORKS[self.framework].python if self.framework else "3.11"

    @property
    def requirements(self) -> Path:
        """The file with the requirements of the environment."""
        return self.root / "requirements" / f"{self.framework or 'main'}.txt"

    def inputs(self) -> dict[str, str]:
        """Return the inputs of the environment, as its stamp would have them now."""
        return {
            "python": self.python,
            "requirements": self.requirements.read_text(encoding="utf-8"),
            "checkout": str(self.root),
            "project": (self.root / "pyproject.toml").read_text(encoding="utf-8"),
        }

    def due(self) -> tuple[str, str]:
        """Return the step that is due, "make", "link" or "", and why."""
        now, then = self.inputs(), read_record(self.folder / "gradwatch.json")
        if not self.folder.exists():
            return "make", "not there yet"
        if not then:
            return "make", "left half-made"
        if any(then.get(name) != now[name] for name in ("python", "requirements")):
            return "make", f"{self.requirements.name} has changed"
        if not (self.folder / "bin" / "python").exists():
            return "make", "its Python is gone"
        if then != now:
            return "link", "the checkout has moved, or pyproject.toml has changed"
        return "", ""

    def ensure(self, uv: Uv) -> None:
        """Make the environment, or put the checkout on its path, if that is due.

        Raises:
            Unavailable: it cannot be made; the old one is unchanged.
        """
        (due, why), name, begun = self.due(), self.folder.name, time.monotonic()
        new, old = (self.folder.with_name(name + end) for end in (".new", ".old"))
        tell(f"{name}: {'making' if due == 'make' else 'linking'} it ({why})")
        remove(new, old)
        try:
            if due == "make":
                uv.make(new, self.python, "--requirement", self.requirements)
            self.link(new if due == "make" else self.folder, uv)
            for source, target in ((self.folder, old), (new, self.folder)):
                if new.exists() and source.exists():
                    os.replace(str(source), str(target))
        finally:
            remove(new)
        remove(old)
        tell(f"{name}: ready after {time.monotonic() - begun:.0f} s")

    def link(self, folder: Path, uv: Uv) -> None:
        """Put the checkout on the path of the environment in `folder`, and stamp it."""
        if self.framework:
            (packages,) = folder.glob("lib/python*/site-packages")
            (packages / "gradwatch.pth").write_text(f"{self.root}\n")
        else:  # setuptools, which builds it, is among the requirements
            options = ("--no-deps", "--no-build-isolation", "--editable", self.root)
            where = ("--python", folder / "bin" / "python")
            uv.run(self.folder.name, "pip", "install", *where, *options)
        write_record(folder / "gradwatch.json", self.inputs())


def read_record(file: Path) -> dict[str, object]:
    """Return a small JSON file of ours, or {} where it is absent or damaged."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(file: Path, record: Mapping[str, object]) -> None:
    """Write a small JSON file of ours."""
    file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def remove(*folders: Path) -> None:
    """Remove folders, or links to them, that exist."""
    for folder in folders:
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(str(folder))


# --- all of them -----------------------------------------------------------------


def ensure_all(root: Path, required: str | None) -> dict[str, str]:
    """Make the environments that are due; return why a framework is skipped, by name.

    Raises:
        Unavailable: the main environment cannot be made.
    """
    skipped, uv = {}, None
    for one in (Environment(root, name) for name in ("", *FRAMEWORKS)):
        insist = one.framework in ("", required)
        asked = insist or not FRAMEWORKS[one.framework].asked_for
        if not (asked or one.folder.exists()) or not one.due()[0]:
            continue
        # A failure is remembered, with its inputs, until these change or the caller
        # insists: without a network, each attempt takes ten seconds.
        note = root / ".uv" / f"{one.framework}-skipped.json"
        before = read_record(note)
        if before.get("attempt") == one.inputs() and not insist:
            skipped[one.framework] = str(before["reason"])
            continue
        try:
            uv = uv or Uv(root)
            one.ensure(uv)
        except Unavailable as problem:
            if not one.framework:
                raise
            skipped[one.framework] = str(problem)
            write_record(note, {"attempt": one.inputs(), "reason": str(problem)})
    return skipped


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let other runs in this checkout wait; the lock ends with the process."""
    folder = root / ".uv"
    folder.mkdir(exist_ok=True)
    with open(str(folder / "lock"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str] | None = None) -> int:
    """Make missing environments; 0 if the main environment is ready, else 1."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument(
        "--require",
        metavar="NAME",
        help="also try this framework, even if it was skipped, and fail without it",
    )
    required = parser.parse_args(arguments).require
    if required is not None and required not in FRAMEWORKS:
        what = f"no framework {required!r}" if required else "no framework named"
        tell(f"error: {what}: make framework NAME={'|'.join(FRAMEWORKS)}")
        return 2
    try:
        with alone(ROOT):
            skipped = ensure_all(ROOT, required)
    except Unavailable as problem:
        tell(f"error: {problem}")
        return 1
    except OSError as problem:
        tell(f"error: cannot make the environments: {problem}")
        return 1
    except KeyboardInterrupt:
        tell("environments: interrupted; the old ones are unchanged")
        return 130
    for name, why in skipped.items():
        again = f"`make framework NAME={name}` tries again"
        tell(f"{FRAMEWORKS[name].title} is skipped: {why} ({again})")
    return 1 if required in skipped else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped: clean up too
    sys.exit(main())
