"""The project whose operations are judged, and the paths of our own packages.

The project is the nearest folder, from the current one upwards, whose pyproject.toml
has a table [tool.gradwatch]; without one it is the checkout that this file is part of.
It is found once, when this module is imported, and an environment variable passes it to
the processes that we start:

    [tool.gradwatch]
    ops = ["gradwatch_ops"]                # folders with op pages
    backends = ["my_backends"]             # folders with files like impls/backends/*.py
    measures = ["mykernels"]               # other code whose changes are measured
    python = {torch = ".venv/bin/python"}  # interpreters, where not the running one
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: Passes a project with a table to child processes; impls/catalogue.py reads it too.
VARIABLE = "GRADWATCH_PROJECT"

#: The checkout, or the installed package: `harness` and `impls` lie in it. The package
#: `gradwatch` of a checkout links to them, so modules have the same names as installed.
SOURCE = Path(__file__).resolve().parents[2]

INSTALLED = not (SOURCE / "gradwatch").is_dir()


@dataclass(frozen=True)
class Project:
    """A project, whose operations are judged; every folder is relative to `root`.

    `measures` are folders and files, or patterns of git's. `table` says whether the
    root has a table [tool.gradwatch]; `problem` is why no command can run here.
    """

    root: Path
    ops: tuple[str, ...]
    backends: tuple[str, ...]
    measures: tuple[str, ...]
    python: Mapping[str, str] = field(default_factory=dict)
    table: bool = True
    problem: str = ""

    @property
    def code(self) -> tuple[str, ...]:
        """The files and folders that a commit's measurements are attributed to."""
        return (*self.measures, *self.ops, *self.backends)

    @property
    def instrument(self) -> tuple[str, ...]:
        """The files of the project that measurements run on: our own, or settings."""
        ours = ("harness", "benchmarks", "requirements")
        return ("asv.conf.json",) if self.table else (*ours, "asv.conf.json")

    def files(self, op: str) -> tuple[str, ...]:
        """Return git's patterns of the files that an op runs; "*" for all pages.

        A page imports none of the others, so theirs are not among them; other files in
        its folder have names that begin with an underscore.
        """
        pages = [f"{path}/{name}" for path in self.ops for name in (f"{op}.py", "_*")]
        plain = [name for name in self.measures if "*" not in name]
        folders = [f"{folder}/**" for folder in (*plain, *self.backends)]
        return tuple(f":(glob){one}" for one in (*self.measures, *folders, *pages))

    def paths(self, root: Path) -> list[Path]:
        """The import path of the project's own modules; `root` may be a commit's."""
        if not self.table:
            return [] if INSTALLED else [SOURCE]
        parents = [(root / name).parent for name in self.measures if "*" not in name]
        return list(dict.fromkeys([root, *parents]))

    def variables(self, root: Path) -> dict[str, str]:
        """Environment variables for a process that runs the code in `root`."""
        if not self.table:
            return {}
        paths = [str(path) for path in self.paths(root)]
        fields = {**asdict(self), "root": str(root), "paths": paths}
        return {VARIABLE: json.dumps(fields)}


def find(start: Path, variables: Mapping[str, str]) -> Project:
    """The project of a folder; without one, a `Project` with a `problem`."""
    inherited = variables.get(VARIABLE)
    if inherited:
        return _decoded(json.loads(inherited))
    for folder in (start, *start.parents):
        file = folder / "pyproject.toml"
        if file.is_file() and "[tool.gradwatch]" in _text(file):
            return _read(file)
    ours = ("impls/ops",), ("impls/backends",), ("impls/*.py", "impls/graph")
    if INSTALLED:
        return Project(start, *ours, table=False, problem=_NONE)
    return Project(SOURCE, *ours, table=False)


_NONE = (
    "no project here: no pyproject.toml from this folder upwards has a table"
    " [tool.gradwatch]; `gradwatch init` writes one"
)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _decoded(fields: Mapping[str, Any]) -> Project:
    ops, backends, measures = (tuple(map(str, fields[name])) for name in _LISTS)
    return Project(Path(fields["root"]), ops, backends, measures, fields["python"])


def _read(file: Path) -> Project:
    """The project of a table; its mistakes become the `problem`."""
    try:
        table = toml(file)["tool"]["gradwatch"]
        if wrong := "; ".join(_wrong(table)):
            raise ValueError(wrong)
        return _decoded({**_DEFAULTS, **table, "root": file.parent})
    except ImportError:
        problem = "pyproject.toml cannot be read before Python 3.11: pip install tomli"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"{file.name}: {error}"
    return Project(file.parent, (), (), (), problem=problem)


_LISTS = ("ops", "backends", "measures")
_DEFAULTS = {"ops": ["gradwatch_ops"], "backends": [], "measures": [], "python": {}}


def toml(file: Path) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        ImportError: This Python has no parser: before 3.11 tomli is a package.
    """
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    parsed: dict[str, Any] = importlib.import_module(name).loads(_text(file))
    return parsed


def _wrong(table: Mapping[str, Any]) -> Iterator[str]:
    """The mistakes in a table [tool.gradwatch], a line each."""
    for name in sorted({*table} - {*_DEFAULTS}):
        yield f"[tool.gradwatch] has no {name!r}; it has {', '.join(_DEFAULTS)}"
    for name in _LISTS:
        value = table.get(name, [])
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            yield f"{name} is a list of folders"
            continue
        for v in value:
            if Path(v).is_absolute() or ".." in v.split("/"):
                yield f"{name}: {v!r} lies outside the project"
    if not isinstance(table.get("python", {}), dict):
        yield 'python is a table of interpreters, such as {torch = ".venv/bin/python"}'


PROJECT = find(Path.cwd(), os.environ)
ROOT = PROJECT.root
os.environ.update(PROJECT.variables(ROOT))

# Other interpreters ------------------------------------------------------------

#: The first code that another interpreter runs; the function below makes `place`.
START = """
import importlib.util, os, sys
def bring(name, folder):
    file = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        name, file, submodule_search_locations=[folder]
    )
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
class Old:  # `gradwatch.impls.contract` is the module `gradwatch.impls.contract`
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "impls":
            return importlib.util.spec_from_loader(name, self)
    def create_module(self, spec):
        module = importlib.import_module("gradwatch." + spec.name)
        self.spec = module.__spec__
        return module
    def exec_module(self, module):
        module.__spec__ = self.spec  # the import system has replaced it
os.environ.update(place["variables"])
sys.path[:] = place["paths"] + [path for path in sys.path if path]
for name, folder in place["packages"]:
    bring(name, folder)
sys.meta_path.insert(0, Old())
"""


def place(measured: Path) -> dict[str, Any]:
    """The `place` with which START runs the operations in `measured`: builtin types.

    In a checkout these are its `impls`; all our other code is this version's.
    `gradwatch` is imported by its folder, whatever the interpreter's path is.
    """
    packages = {"gradwatch": SOURCE}
    if not INSTALLED:
        packages = {"gradwatch": SOURCE / "gradwatch"}
        packages["gradwatch.impls"] = (SOURCE if PROJECT.table else measured) / "impls"
    return {
        "packages": [(name, str(folder)) for name, folder in packages.items()],
        "paths": [str(path) for path in PROJECT.paths(measured)],
        "variables": PROJECT.variables(measured),
    }


STALE = 3600.0  # seconds: writing a hidden file and renaming it takes a few
_SWEPT = 10.0  # seconds: a run that removes old folders may hold the lock of a new one


class Busy(Exception):
    """Another process holds the lock; the message names its purpose."""

    exit_code = 2


@contextlib.contextmanager
def alone(file: Path, what: str, patience: float = 0) -> Iterator[None]:
    """Hold a lock, which is released however the process ends.

    Wait for it for at most `patience` seconds.

    Raises:
        Busy: Another process still holds it.
    """
    from filelock import FileLock, Timeout  # which a worker may lack

    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()  # the lock waits for a file that nobody can make
    try:
        lock = FileLock(file, thread_local=False).acquire(timeout=patience)
    except Timeout:
        raise Busy(f"{what} is going on already, in another process") from None
    with lock:
        try:
            yield
        finally:  # a waiting process finds the file unlinked, and tries again
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Yield a temporary folder that is removed at the end.

    Folders that killed processes left, whose locks are free, are removed first.
    """
    begins = f"gradwatch-{kind}-"
    for left in Path(tempfile.gettempdir()).glob(f"{begins}*/lock"):
        with contextlib.suppress(Busy, OSError), alone(left, ""):
            shutil.rmtree(left.parent)
    with (
        tempfile.TemporaryDirectory(
            prefix=begins, ignore_cleanup_errors=True
        ) as folder,
        alone(Path(folder, "lock"), "its use", _SWEPT),  # another run may probe it
    ):
        yield Path(folder)


def remove_stale(target: Path) -> None:
    """Remove files that killed runs left when they were replacing a file or folder.

    A replacement is first written beside it as a hidden file like .agree.json.x7d_q.
    """
    for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
        with contextlib.suppress(OSError):  # another run has removed it
            if time.time() - left.lstat().st_mtime < STALE:
                continue
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left)
            else:
                left.unlink()
