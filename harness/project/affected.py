"""Finds the ops and backends that a change can affect, by the files that it touches."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gradwatch.harness.project import git
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.requested import by_default
from gradwatch.impls.catalogue import op_names

Pair = tuple[str, str]  # op, backend


def affected(old: str, new: str, root: Path = ROOT) -> list[Pair]:
    """Return op and backend of all that run different files at two commits.

    A page concerns its op, a backend's file that backend, any other file that a commit
    is measured by all that runs by default. Raises NoCommit where one is no commit.
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
    return [(op, backend) for op in ops for backend in backends]
