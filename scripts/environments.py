#!/usr/bin/env python3
"""Make the environments of this checkout, if they are not made yet.

    .venv             Python 3.11: PyTorch, and everything that the project needs
    .venv-FRAMEWORK   a framework with requirements of its own, for its workers

Each environment has a stamp of its inputs, so nothing is done if these are unchanged. A
new environment is made in another folder and moved when it is complete, so a run that
fails or is interrupted leaves the old one unchanged. Several are made side by side. The
frameworks are optional: if one cannot be installed, one line says why and what to
install.

Standard library only, Python 3.8 or later: this runs before there is an environment.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.8"  # installed if there is no uv on PATH
OLDEST_UV = (0, 5)  # earlier versions lack options used below
EVERY = 10  # seconds between lines of progress where there is no terminal
PATIENCE = 30  # seconds for an interpreter to print its version: a cold disk is slow
IMPORTING = 120  # seconds to import a framework from a cold disk
COMPILING = 600  # seconds to compile ten thousand files, which takes twenty
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}

# pip's settings and their names in uv, which reads none of pip's; the separator is
# what uv wants between several values, pip's being white space.
PIP_TO_UV = {
    "find-links": ("UV_FIND_LINKS", ","),
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
}


@dataclass(frozen=True)
class Framework:
    """One that has requirements/<name>.txt; see `FRAMEWORKS`."""

    title: str
    python: str  # version
    module: str  # what a worker imports
    asked_for: bool = False  # made only on request
    only_linux_x86: bool = False  # has no other builds


FRAMEWORKS = {
    "oneflow": Framework("OneFlow", "3.10", "oneflow", only_linux_x86=True),
    "jax": Framework("JAX", "3.11", "jax"),
    "paddle": Framework("Paddle", "3.11", "paddle", asked_for=True),
    "mlx": Framework("MLX", "3.11", "mlx.core", asked_for=True),
    "tensorflow": Framework("TensorFlow", "3.11", "tensorflow", asked_for=True),
    "torch-1.12": Framework("PyTorch 1.12.1", "3.10", "torch", asked_for=True),
}

#: What commands and workers import of .venv, in two groups that take equally long.
#: PyTorch imports symbolic_shapes, and with it sympy, at its first backward.
IMPORTED = (
    ("torch", "torch.fx.experimental.symbolic_shapes"),
    (
        *("sympy", "numpy.typing", "autograd.numpy", "bokeh.plotting", "markdown_it"),
        *("jinja2", "pygments.lexers.python", "pygments.formatters.html", "lxml"),
        *("rich.progress", "rich.table", "click", "execnet", "msgspec", "filelock"),
        *("platformdirs", "psutil", "junitparser", "packaging.version", "ruptures"),
        "pygments.styles.default",
    ),
)


#: On request, too, but no environment of its own: .venv has all but the compiler.
COMPILED = "torch-compile"


class Unavailable(Exception):
    """Something needed is not available; the message is one line with what to do."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of the checkout and what it is made from."""

    folder: Path
    version: str  # of Python, "3.11"
    requirements: Path
    editable: bool  # installed, with its console script, or only put on the path
    imported: Sequence[Sequence[str]]  # modules, in groups that are side by side

    @property
    def root(self) -> Path:
        """The checkout."""
        return self.folder.parent

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"


class Running:
    """The programs that run now, which an end of this one ends, too.

    several: whether environments are made side by side.
    """

    def __init__(self, several: bool = False) -> None:
        self.several = several
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._stopped = False

    @contextlib.contextmanager
    def started(
        self, command: Sequence[str], **options: object
    ) -> Iterator[subprocess.Popen[str]]:
        """A process; KeyboardInterrupt instead if all were stopped."""
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(command, text=True, **options)  # type: ignore[call-overload]  # as given
            self._processes.add(process)
        try:
            with process:
                yield process
        finally:
            with self._lock:
                self._processes.discard(process)

    def stop(self) -> None:
        """End them, and start no more."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.terminate()


#: How a program ends that an interrupt has ended.
INTERRUPTED = (-signal.SIGINT, -signal.SIGTERM, 128 + signal.SIGINT)


@dataclass(frozen=True)
class Uv:
    """The program that makes environments, and the checkout it works for.

    whose: the environment that its lines of progress name, where several are made.
    """

    program: str
    root: Path
    whose: str = ""
    running: Running = field(default_factory=Running)

    @cached_property
    def variables(self) -> dict[str, str]:
        """The environment variables it is run with."""
        return uv_variables(self.root, pip_settings(python_with_pip()))

    def __call__(self, *arguments: object) -> None:
        """Run it; its progress is shown on a terminal, elsewhere a line at times.

        Raises:
            Unavailable: It failed.
        """
        shown = sys.stderr.isatty() and not self.whose
        what = " ".join(word for word in map(str, arguments[:2]) if word.isalpha())
        begun = time.monotonic()
        with self.running.started(
            [self.program, *map(str, arguments)],
            env=self.variables,
            stdout=subprocess.DEVNULL,
            stderr=None if shown else subprocess.PIPE,
        ) as process:
            said = None
            while process.returncode is None:
                try:
                    _, said = process.communicate(timeout=EVERY)
                except subprocess.TimeoutExpired:
                    if not shown:
                        whose = f"{self.whose}: " if self.whose else ""
                        tell(f"{whose}uv {what}, {time.monotonic() - begun:.0f} s")
                except BaseException:  # such as an interrupt: as subprocess.run does
                    process.kill()
                    raise
        if process.returncode in INTERRUPTED:
            raise KeyboardInterrupt
        if process.returncode:
            raise Unavailable(f"`uv {what}` failed{in_one_line(said)}")


def main_environment(root: Path) -> Environment:
    """The environment of PyTorch and of the project itself."""
    requirements = root / "requirements" / "main.txt"
    return Environment(root / ".venv", "3.11", requirements, True, IMPORTED)


def environment_of(framework: str, root: Path) -> Environment:
    """The environment of a framework's workers."""
    requirements = root / "requirements" / f"{framework}.txt"
    folder, about = root / f".venv-{framework}", FRAMEWORKS[framework]
    return Environment(folder, about.python, requirements, False, ((about.module,),))


def tell(line: str) -> None:
    """Print progress on standard error; standard output stays free."""
    print(line, file=sys.stderr, flush=True)


def in_one_line(message: str | None) -> str:
    """A program's error message in one line: the error and its last cause.

    "" if there is none to quote, because it went to the terminal.
    """
    lines = [line.strip() for line in (message or "").splitlines() if line.strip()]
    if not lines:
        return ""
    error = next((line for line in lines if line.startswith("error")), lines[0])
    quoted = dict.fromkeys((error, lines[-1]))  # once, where they are the same
    return "".join(f": {line}" for line in quoted)


def answer(
    command: Sequence[object],
    variables: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> str:
    """The output of a command, or "" if it cannot run or fails."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            env=None if variables is None else dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=patience,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


# --- Pythons ---------------------------------------------------------------------


@lru_cache(maxsize=None)
def identity(python: Path) -> tuple[str, str]:
    """An interpreter's version and its path outside any virtual environment.

    A file called python3.10 need not be a Python 3.10: the shims of a version manager
    exist for every version and fail for those not selected. So it is run.
    """
    question = (
        "import sys; print('%d.%d' % sys.version_info[:2],"
        " getattr(sys, '_base_executable', sys.executable))"
    )
    version, _, base = answer([python, "-I", "-c", question]).partition(" ")
    return version, base


def on_path(name: str) -> Iterator[Path]:
    """Every program of that name on PATH, working or not, in its order."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        file = Path(folder or ".", name)
        if os.access(str(file), os.X_OK):
            yield file


def pythons_of_pyenv(version: str) -> list[Path]:
    """pyenv's interpreters of a version, selected or not, newest first."""
    root = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    found = root.glob(f"versions/{version}.*/bin/python{version}")

    def patch(file: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", file.parts[-3])]

    return sorted(found, key=patch, reverse=True)


def pythons_of_uv(version: str, uv: Uv) -> Iterator[Path]:
    """uv's own interpreters, of the user and of this checkout."""
    command = (uv.program, "python", "find", "--python-preference=only-managed")
    ours = {**os.environ, "UV_PYTHON_INSTALL_DIR": str(pythons_folder(uv.root))}
    for variables in (os.environ, ours):
        found = answer([*command, version], variables)
        if found:
            yield Path(found)


def pythons_folder(root: Path) -> Path:
    """Where uv puts an interpreter that it fetches."""
    return root / ".uv" / "python"


def working(candidates: Iterable[Path], version: str) -> Iterator[str]:
    """The base paths of the candidates that run and have the version."""
    for candidate in candidates:
        got, base = identity(candidate)
        if got == version:
            yield base


def local_pythons(version: str) -> Iterator[str]:
    """Working interpreters of a version that were there before uv."""
    yield from working(on_path(f"python{version}"), version)
    yield from working(pythons_of_pyenv(version), version)


def find_python(version: str, uv: Uv) -> str:
    """A working interpreter of the version on this machine, or ""."""
    local = next(local_pythons(version), "")
    return local or next(working(pythons_of_uv(version, uv), version), "")


def fetch_python(version: str, uv: Uv) -> str:
    """Let uv fetch an interpreter into the checkout.

    Raises:
        Unavailable: None could be had.
    """
    tell(f"Python {version}: none found on this machine, fetching one")
    try:
        uv("python", "install", version)
    except Unavailable as problem:
        tell(f"Python {version}: {problem}")
    identity.cache_clear()
    found = find_python(version, uv)
    if not found:
        raise Unavailable(
            f"no Python {version} on this machine, and none could be fetched; install "
            f"one (`uv python install {version}`, `pyenv install {version}` or your "
            f"system's python{version}) and run make again"
        )
    return found


# --- uv --------------------------------------------------------------------------


def python_with_pip() -> str:
    """An interpreter that has pip, or ""; Debian's python3 has none by default."""
    candidates = [sys.executable, *local_pythons("3.11"), *local_pythons("3.10")]
    return next((p for p in candidates if answer([p, "-m", "pip", "--version"])), "")


def pip_settings(python: str) -> dict[str, str]:
    """pip's settings from its variables or else its files, by option name."""
    lines = answer([python, "-m", "pip", "config", "list"]).splitlines()
    listed = dict(line.split("=", 1) for line in lines if "=" in line)
    settings = {}
    for name in PIP_TO_UV:
        value = os.environ.get("PIP_" + name.upper().replace("-", "_"), "")
        for section in ("install", "global"):  # the order in which pip looks
            value = value or ast.literal_eval(listed.get(f"{section}.{name}", "''"))
        settings[name] = value
    return settings


def uv_variables(root: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """The variables for uv: it searches where pip searches, and writes only in `root`.

    A variable of uv that the user has set is kept.
    """
    ours = {
        "UV_PYTHON_INSTALL_DIR": str(pythons_folder(root)),
        "UV_PYTHON_INSTALL_BIN": "0",  # no link in the user's home
    }
    for name, (variable, separator) in PIP_TO_UV.items():
        if settings.get(name):
            ours[variable] = separator.join(settings[name].split())
    if "UV_INDEX" in ours:
        # pip takes the best version of all indexes, uv that of the first one only
        ours["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {**ours, **os.environ}


def is_recent(version: str) -> bool:
    """Whether `uv --version` names a release with the options used here."""
    numbers = re.match(r"uv (\d+)\.(\d+)", version)
    return numbers is not None and tuple(map(int, numbers.groups())) >= OLDEST_UV


def find_uv(root: Path) -> Uv:
    """uv from PATH, else from the checkout, else installed there with pip.

    Raises:
        Unavailable: There is neither uv nor a pip to install it with.
    """
    own = root / ".uv" / "bin" / "uv"
    candidates = (*on_path("uv"), own)
    recent = (file for file in candidates if is_recent(answer([file, "--version"])))
    return Uv(str(next(recent, None) or install_uv(own)), root)


def install_uv(own: Path) -> Path:
    """Install uv at `own`, with pip.

    Raises:
        Unavailable: It could not be installed.
    """
    hint = "install uv, or pip for python3 (Debian: python3-pip), and run make again"
    python = python_with_pip()
    if not python:
        raise Unavailable(f"neither uv nor pip is on this machine; {hint}")
    tell(f"uv: installing {UV} into {own.parents[1].name}")
    pip = [python, "-m", "pip", "install", "--quiet", "--upgrade"]
    command = [*pip, "--target", str(own.parents[1]), UV]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if done.returncode or not answer([own, "--version"]):
        raise Unavailable(f"pip cannot install uv{in_one_line(done.stderr)}; {hint}")
    return own


# --- stamps ----------------------------------------------------------------------


def digest(*parts: str) -> str:
    """A fingerprint of some texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def stamp_due(environment: Environment) -> dict[str, str]:
    """The stamp that the environment would get now."""
    requirements = environment.requirements.read_text(encoding="utf-8")
    project = (environment.root / "pyproject.toml").read_text(encoding="utf-8")
    return {
        "requirements": digest(environment.version, requirements),
        "checkout": str(environment.root),
        "project": digest(project),
    }


def read_record(file: Path) -> dict[str, object]:
    """A small JSON file of ours, or {} where it is absent or damaged."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def write_record(file: Path, record: Mapping[str, object]) -> None:
    """Write such a file in one step."""
    file.parent.mkdir(exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(str(partial), str(file))


def stamp_file(folder: Path) -> Path:
    """Where an environment's stamp lies."""
    return folder / "gradwatch.json"


def task(environment: Environment) -> tuple[str, str]:
    """What has to be done, "make", "link" or "nothing", and why."""
    due = stamp_due(environment)
    stamp = read_record(stamp_file(environment.folder))
    if not environment.folder.exists():
        return "make", "not there yet"
    if not stamp:
        return "make", "left half-made"
    if stamp.get("requirements") != due["requirements"]:
        return "make", f"{environment.requirements.name} has changed"
    if identity(environment.python)[0] != environment.version:
        return "make", "its Python does not run"
    if stamp != due:
        return "link", "the checkout has moved, or pyproject.toml has changed"
    return "nothing", ""


# --- making ----------------------------------------------------------------------


def remove(path: Path) -> None:
    """Remove a folder, or a link to one, if it is there."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(str(path))


def link(environment: Environment, folder: Path, uv: Uv) -> None:
    """Put the checkout on the path of the environment in `folder`, and stamp it."""
    if environment.editable:
        # setuptools, which builds it, is among the requirements
        options = ("--no-deps", "--no-build-isolation", "--editable", environment.root)
        uv("pip", "install", "--python", folder / "bin" / "python", *options)
    else:
        (packages,) = folder.glob("lib/python*/site-packages")
        (packages / "gradwatch.pth").write_text(f"{environment.root}\n")
    write_record(stamp_file(folder), stamp_due(environment))


def compile_imported(environment: Environment, folder: Path, uv: Uv) -> None:
    """Let Python compile what is imported of an environment, by importing it.

    Workers that start beside each other would all compile the same. Where that fails,
    the command that needs it says why.
    """
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(uv.running.started(importing(folder, names), **SILENT))
            for names in environment.imported
        ]
        try:
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(IMPORTING)
        finally:
            for process in started:
                process.kill()


def importing(folder: Path, names: Sequence[str]) -> list[str]:
    """The command that imports modules in an environment, as far as it has them."""
    code = "import contextlib, importlib\n" + "".join(
        f"with contextlib.suppress(Exception): importlib.import_module({name!r})\n"
        for name in names
    )
    # -I: also where PYTHONDONTWRITEBYTECODE is set
    return [str(folder / "bin" / "python"), "-I", "-c", code]


def compile_rest(environment: Environment) -> None:
    """Compile all that is installed, where Python keeps nothing that it compiles.

    Each import of torch would otherwise take 2.2 s instead of 1.1 s.
    """
    note = environment.folder / "compiled"
    if not (sys.dont_write_bytecode and environment.python.exists()) or note.exists():
        return
    tell(f"{environment.folder.name}: compiling it (PYTHONDONTWRITEBYTECODE is set)")
    quiet = ("-q", "-q", "-j", "0")  # not all that is installed can be compiled
    packages = environment.folder.glob("lib/python*/site-packages")
    command = [environment.python, "-I", "-m", "compileall", *quiet, *packages]
    answer(command, patience=COMPILING)
    note.touch()


def make(environment: Environment, python: str, uv: Uv) -> None:
    """Make the environment from `python`; it replaces the old one when complete.

    Raises:
        Unavailable: It could not be made; the old one is unchanged.
    """
    folder = environment.folder
    new, old = (folder.with_name(f"{folder.name}.{end}") for end in ("new", "old"))
    remove(new)
    remove(old)
    try:
        uv("venv", "--relocatable", "--python", python, new)
        tell(f"{folder.name}: installing {environment.requirements.name}")
        target = ("--python", new / "bin" / "python")
        uv("pip", "install", *target, "--requirement", environment.requirements)
        compile_imported(environment, new, uv)
        link(environment, new, uv)
        if folder.exists():
            os.replace(str(folder), str(old))
        os.replace(str(new), str(folder))
    finally:
        remove(new)
    remove(old)


def perform(environment: Environment, due: str, why: str, python: str, uv: Uv) -> None:
    """Make or link an environment, and print what is done."""
    name, start = environment.folder.name, time.monotonic()
    tell(f"{name}: {'making' if due == 'make' else 'linking'} it ({why})")
    if due == "make":
        python = python or fetch_python(environment.version, uv)
        tell(f"{name}: Python {environment.version} is {python}")
        make(environment, python, uv)
    else:
        link(environment, environment.folder, uv)
    tell(f"{name}: ready after {time.monotonic() - start:.0f} s")


#: uv is looked for, and installed, by one thread at a time.
_LOOKING = threading.Lock()


def uv_for(environment: Environment, running: Running) -> Uv:
    """uv, as it makes one environment."""
    with _LOOKING:
        uv = find_uv(environment.root)
    whose = environment.folder.name if running.several else ""
    return replace(uv, whose=whose, running=running)


def ensure(environment: Environment, running: Running) -> None:
    """Make or link an environment, if necessary.

    Raises:
        Unavailable: It cannot be made.
    """
    due, why = task(environment)
    if due != "nothing":
        uv = uv_for(environment, running)
        python = find_python(environment.version, uv) if due == "make" else ""
        perform(environment, due, why, python, uv)


def ensure_framework(name: str, root: Path, insist: bool, running: Running) -> str:
    """Make or link its environment if necessary; return why it is skipped, or "".

    A failure is remembered, with its inputs, until these change or the caller insists:
    without a network, each attempt to download something takes ten seconds.
    """
    environment, framework = environment_of(name, root), FRAMEWORKS[name]
    due, why = task(environment)
    if due == "nothing":
        return ""
    here = (platform.system(), platform.machine())
    if framework.only_linux_x86 and here != ("Linux", "x86_64"):
        return f"{framework.title} has builds for Linux on x86-64 only"
    note = root / ".uv" / f"{name}-skipped.json"
    uv = uv_for(environment, running)
    python = find_python(environment.version, uv) if due == "make" else ""
    attempt = {"python": python, **stamp_due(environment)}
    skipped = read_record(note)
    if skipped.get("attempt") == attempt and not insist:
        return str(skipped["reason"])
    try:
        perform(environment, due, why, python, uv)
    except Unavailable as problem:
        write_record(note, {"attempt": attempt, "reason": str(problem)})
        return str(problem)
    return ""


def ensure_all(root: Path, required: str | None) -> dict[str, str]:
    """Make what is due, side by side; why a framework is skipped, or "", by its name.

    Raises:
        Unavailable: The main environment cannot be made.
    """
    names = [name for name in FRAMEWORKS if name == required or is_due(name, root)]
    wanted = [main_environment(root), *(environment_of(name, root) for name in names)]
    running = Running(sum(task(one)[0] != "nothing" for one in wanted) > 1)
    with ThreadPoolExecutor(len(wanted)) as pool:
        try:
            ready = pool.submit(ensure, wanted[0], running)
            made = {
                name: pool.submit(
                    ensure_framework, name, root, name == required, running
                )
                for name in names
            }
            awaited(ready)
            return {name: awaited(one) for name, one in made.items()}
        except BaseException:  # such as an interrupt
            running.stop()
            raise


def awaited(future: Future[T]) -> T:
    """Its result; a signal that comes just before a wait is only seen after it."""
    while wait([future], timeout=1).not_done:
        pass
    return future.result()


def without_compiler() -> str:
    """Why torch.compile does not run on a CPU here, and what to install, or ""."""
    wanted = os.environ.get("CXX", "g++")  # as PyTorch looks for it
    if shutil.which(wanted):
        return ""
    return f"it needs a C++ compiler, and there is no {wanted} (Debian: g++)"


def is_due(name: str, root: Path) -> bool:
    """Whether a framework is made without being asked for, or was made before."""
    return not FRAMEWORKS[name].asked_for or environment_of(name, root).folder.exists()


@contextlib.contextmanager
def alone(root: Path) -> Iterator[None]:
    """Let other runs in this checkout wait; the lock ends with the process."""
    folder = root / ".uv"
    folder.mkdir(exist_ok=True)
    with open(str(folder / "lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("environments: another run is making them; waiting for it")
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
    parser.add_argument(
        "--first-look",
        action="store_true",
        help="compile only what a first look imports",
    )
    given = parser.parse_args(arguments)
    required = given.require
    names = (*FRAMEWORKS, COMPILED)
    if required is not None and required not in names:
        what = f"no framework {required!r}" if required else "no framework named"
        tell(f"error: {what}: make framework NAME={'|'.join(names)}")
        return 2
    skipped = {}
    try:
        with alone(ROOT):
            skipped = ensure_all(ROOT, required)
            if not given.first_look:
                compile_rest(main_environment(ROOT))
                for name in FRAMEWORKS:
                    compile_rest(environment_of(name, ROOT))
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
        if why:
            tell(f"{FRAMEWORKS[name].title} is skipped: {why} ({again})")
    if required == COMPILED:
        why = skipped[COMPILED] = without_compiler()
        ready = "nothing to download; `gradwatch agree --backend torch_compile`"
        tell(f"torch.compile: {why or ready}")
    return 1 if skipped.get(required) else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopped: clean up too
    sys.exit(main())
