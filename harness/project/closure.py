"""The files of ours that a module runs: its own, and those of all that it imports."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from gradwatch.harness.project.paths import SOURCE

_STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)

Read = Callable[[Path], bytes]
Imports = Callable[[bytes, str], Sequence[str]]


@lru_cache(maxsize=4096)  # every module of ours several times
def imported(content: bytes, package: str) -> tuple[str, ...]:
    """The modules that a module of a package names in its imports.

    Raises:
        SyntaxError, ValueError: It is no Python.
    """
    waiting: list[ast.AST] = [ast.parse(content)]
    names = list[str]()
    while waiting:  # of statements alone: expressions import nothing
        node = waiting.pop()
        names += _named(node, package)
        waiting += (
            part for part in ast.iter_child_nodes(node) if isinstance(part, _STATEMENTS)
        )
    return tuple(names)


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        above = parents[: len(parents) + 1 - node.level] if node.level else []
        module = ".".join([*above, *filter(None, [node.module])])
        yield module
        yield from (f"{module}.{alias.name}" for alias in node.names)


def closure(
    modules: Iterable[str],
    source: Path = SOURCE,
    read: Read = Path.read_bytes,
    without: Container[Path] = (),
    imports: Imports = imported,
) -> dict[Path, bytes]:
    """The files below `source` that these modules may run, with what is in them.

    An import counts wherever it stands: in a function, and for the types alone. A
    package counts with each module in it. What is imported by a name that is made at
    run time is not seen: whoever does so names it in `modules`. Files that are in
    `without` are left out, with all that they import. `imports` says what a file names.

    Raises:
        SyntaxError, ValueError: A file is no Python.
    """
    waiting, seen, files = list(modules), set[str](), dict[Path, bytes]()
    ours = {name.removesuffix(".py") for name in os.listdir(source)}
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] not in ours:
            continue
        seen.add(name)
        file = _file(name, source)
        if file is None or file in files or file in without:
            continue
        files[file] = read(file)
        inside = name if file.name == "__init__.py" else name.rpartition(".")[0]
        named = imports(files[file], inside)
        waiting += [name.rpartition(".")[0], *named]
    return files


def _file(module: str, source: Path) -> Path | None:
    """The file of a module, if it is below the folder."""
    if not module:
        return None
    place = source.joinpath(*module.split("."))
    for file in (place / "__init__.py", place.with_name(f"{place.name}.py")):
        if file.is_file():
            return file.resolve()  # not by the links of a checkout
    return None
