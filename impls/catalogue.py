"""Finds ops and backends by file name; lists them without importing any of them.

In a project with a table [tool.gradwatch] (harness/project/paths.py), the ops are the
project's pages, and the backends are ours and the project's.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwatch.impls.contract import Backend, Op

_HERE = Path(__file__).parent
_OPS = _HERE / "ops"
_PROJECT = "GRADWATCH_PROJECT"  # the environment variable that describes a project

#: Around each import of a page, and each call of its formula for a reference, with the
#: name of its file: for the process that ends one that hangs.
guard: Callable[[str], contextlib.AbstractContextManager[None]]
guard = contextlib.nullcontext  # type: ignore[assignment]  # of the name, not of None


class UnknownName(LookupError):
    """An unknown name; the message suggests the nearest known one."""

    exit_code = 2


def op_names() -> tuple[str, ...]:
    """Names of all ops of the project: the stems of its pages."""
    return _stems(_folders("ops") or [_HERE / "ops"])


def backend_names() -> tuple[str, ...]:
    """Names of all backends: the files in impls/backends, and the project's own.

    Of ours, a project gets those of NumPy and PyTorch, and of each framework for which
    it names an interpreter.
    """
    ours, own = _stems([_HERE / "backends"]), _stems(_folders("backends"))
    project = _project()
    if project:
        wanted = {"numpy", "torch", *project["python"]}
        ours = tuple(name for name in ours if framework_of(name) in wanted)
    return tuple(sorted({*ours, *own}))


def framework_of(backend: str) -> str:
    """The framework of a backend is the first word of its name."""
    return backend.partition("_")[0]


def load_op(name: str) -> Op:
    """Load the op of a page, by its name or by the path of a page.

    Raises:
        UnknownName: There is no such page.
        TypeError: The page does not define `op`.
    """
    page = op_page(name)
    with guard(page.name):
        if page.parent == _OPS:
            return _op_of(importlib.import_module(f"{__package__}.ops.{name}"))
        return _op_of(_load_path(page) if name.endswith(".py") else _loaded_once(page))


def op_page(name: str) -> Path:
    """The file of an op: the project's, ours, or `name` itself if it is a path.

    Raises:
        UnknownName: there is no such page.
    """
    if name.endswith(".py"):
        return Path(name)
    for folder in (*_folders("ops"), _OPS):
        page = folder / f"{name}.py"
        if page.is_file():
            return page
    known("op", name, op_names())
    raise UnknownName(f"the page of {name!r} is gone")


def is_ours(op: str) -> bool:
    """Whether an op, by its name or the path of its page, is one of this package."""
    return op_page(op).resolve().parent == _OPS.resolve()


def backend_file(name: str) -> Path:
    """The file of a backend: the project's, or ours."""
    own = [folder / f"{name}.py" for folder in _folders("backends")]
    return next(filter(Path.is_file, own), _HERE / "backends" / f"{name}.py")


def load_backend(name: str) -> Backend:
    """Import a backend and its framework.

    Raises:
        UnknownName: There is no such backend.
        ImportError: Its framework is missing or broken.
    """
    module = f"{__package__}.backends.{name}"
    if module not in sys.modules or name.startswith("_"):
        known("backend", name, backend_names())  # lists folders: not for every task
    own = [folder / f"{name}.py" for folder in _folders("backends")]
    for file in filter(Path.is_file, own):
        return _backend_of(_loaded_once(file))
    return _backend_of(importlib.import_module(module))


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the name if it is one of `names`.

    Raises:
        UnknownName: It is not; the message names the nearest one.
    """
    names = tuple(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.5)
    near = ["cuda"] if name == "gpu" and "cuda" in names else near
    every = ", ".join(sorted(names))
    hint = f"did you mean {near[0]!r}?" if near else f"one of: {every}"
    raise UnknownName(f"no {kind} is called {name!r}; {hint}")


def _project() -> dict[str, Any]:
    """The table of a project that has one, with its root and its import paths."""
    told: dict[str, Any] = json.loads(os.environ.get(_PROJECT, "{}"))
    return told


def _folders(kind: str) -> list[Path]:
    project = _project()
    return [Path(project["root"], folder) for folder in project.get(kind, ())]


def _stems(folders: Iterable[Path]) -> tuple[str, ...]:
    files = {path.stem for folder in folders for path in folder.glob("*.py")}
    return tuple(sorted(stem for stem in files if not stem.startswith("_")))


def _load_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownName(f"no op page at {path}")
    sys.path[:0] = [p for p in _project().get("paths", ()) if p not in sys.path]
    spec = importlib.util.spec_from_file_location(f"op_page_{path.stem}", path)
    assert spec is not None, f"{path} is no Python file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded_once = functools.cache(_load_path)


def _backend_of(module: ModuleType) -> Backend:
    backend: Backend = module.backend
    return backend


def _op_of(module: ModuleType) -> Op:
    from gradwatch.impls.contract import Op  # imports NumPy, which names do not need

    op = getattr(module, "op", None)
    if not isinstance(op, Op):
        raise TypeError(f"{module.__file__} does not define `op = Op(...)`")
    return op
