"""Finds the ops and backends that a change can affect, by the files that it touches."""

from __future__ import annotations

import ast
import sys
from pathlib import Path, PurePosixPath

from gradwatch.harness.project import git
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.requested import by_default, dialect_of
from gradwatch.impls.catalogue import (
    backend_names,
    framework_of,
    op_names,
    op_page,
)

Pair = tuple[str, str]  # op, backend


def affected(old: str, new: str, root: Path = ROOT) -> list[Pair]:
    """Return op and backend of all that run different files at two commits.

    A page concerns its op, a backend's file that backend, any other file that a commit
    is measured by all that runs by default; in a project of one's own, of a page only
    the dialects that import something. Raises NoCommit where one is no commit.
    """
    changed = git.changed_between(old, new, *PROJECT.code, root=root)
    files = [PurePosixPath(name) for name in changed]
    return sorted({pair for file in files for pair in _touched(file)})


def _touched(file: PurePosixPath) -> list[Pair]:
    ops, backends = list(op_names()), list(by_default())
    shared, folder = file.stem.startswith("_"), str(file.parent)
    if folder in PROJECT.ops and not shared:
        ops = [op for op in ops if op == file.stem]  # none, where the page has gone
    elif folder in PROJECT.backends and not shared:
        backends = [name for name in backends if name == file.stem]
    elif PROJECT.table:
        return [(op, b) for op in ops for b in backends if _imports(op_page(op), b)]
    return [(op, backend) for op in ops for backend in backends]


def _imports(page: Path, backend: str) -> bool:
    """Whether what a backend runs of a page may import the project's own modules."""
    dialect = dialect_of(backend)
    try:
        tree = ast.parse(page.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return True
    for part in tree.body:
        named = {n.value for n in ast.walk(part) if isinstance(n, ast.Constant)}
        of_one = bool(getattr(part, "decorator_list", ()))
        if (not of_one or dialect in named) and any(map(_foreign, ast.walk(part))):
            return True
    return False


def _foreign(node: ast.AST) -> bool:
    """Whether it imports more than Python, NumPy, frameworks and ours."""
    names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom):
        names = [f".{node.module}" if node.level else node.module or ""]
    frameworks = map(framework_of, backend_names())
    known = {"gradwatch", "numpy", *frameworks, *sys.stdlib_module_names}
    return any(name.partition(".")[0] not in known for name in names)
