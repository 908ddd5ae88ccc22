"""Finds ops and backends by file name; lists them without importing any of them."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from impls.contract import Backend, Op

_HERE = Path(__file__).parent


class UnknownName(LookupError):
    """A name that nothing bears; the message suggests the nearest one that exists."""


def op_names() -> tuple[str, ...]:
    """Names of all ops of the project: the pages in impls/ops."""
    return _stems(_HERE / "ops")


def backend_names() -> tuple[str, ...]:
    """Names of all backends: the files in impls/backends."""
    return _stems(_HERE / "backends")


def framework_of(backend: str) -> str:
    """The framework of a backend is the first word of its name."""
    return backend.partition("_")[0]


def load_op(name: str) -> Op:
    """The op of a page, by its name, or by the path of a page outside the project.

    Raises:
        UnknownName: there is no such page.
        TypeError: the page does not define `op`.
    """
    if name.endswith(".py"):
        return _op_of(_load_path(Path(name)))
    if not (_HERE / "ops" / f"{name}.py").is_file():
        known("op", name, op_names())
    return _op_of(importlib.import_module(f"impls.ops.{name}"))


def load_backend(name: str) -> Backend:
    """Import a backend, and with it its framework.

    Raises:
        UnknownName: there is no such backend.
        ImportError: its framework is missing or broken.
    """
    known("backend", name, backend_names())
    module = importlib.import_module(f"impls.backends.{name}")
    backend: Backend = module.backend
    return backend


def known(kind: str, name: str, names: Iterable[str]) -> str:
    """The name itself, if it is one of `names`.

    Raises:
        UnknownName: it is not; the message names the nearest.
    """
    names = sorted(names)
    if name in names:
        return name
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"one of: {', '.join(names)}"
    raise UnknownName(f"no {kind} is called {name!r}; {hint}")


def _stems(folder: Path) -> tuple[str, ...]:
    files = (path.stem for path in folder.glob("*.py"))
    return tuple(sorted(stem for stem in files if not stem.startswith("_")))


def _load_path(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownName(f"no op page at {path}")
    spec = importlib.util.spec_from_file_location(f"op_page_{path.stem}", path)
    assert spec is not None, f"{path} is no Python file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _op_of(module: ModuleType) -> Op:
    op = getattr(module, "op", None)
    if not isinstance(op, Op):
        raise TypeError(f"{module.__file__} does not define `op = Op(...)`")
    return op
