"""Which backends run an op: those whose dialect its page has, and not too costly.

The traits of such a backend say the cost. Whole frameworks are on request, too, until
their environment is made (`gradwatch.harness.workers.interpreters.on_request`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from gradwatch.harness.project import git
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.traits import traits_of
from gradwatch.impls.catalogue import backend_names, framework_of, op_names
from gradwatch.impls.contract import DIALECTS, Op, Unsupported


class Required(Exception):
    """A required backend or device is not here; the message says why."""

    exit_code = 3


def by_default() -> tuple[str, ...]:
    """Names of the backends that run where none is named."""
    return tuple(name for name in backend_names() if not traits_of(name).on_request)


def left_out() -> dict[str, str]:
    """Why the others do not, and how to ask for one."""
    return {
        name: f"runs only on request ({cost}); --backend {name} asks for it"
        for name in backend_names()
        if (cost := traits_of(name).on_request)
    }


def dialect_of(backend: str) -> str:
    """The dialect that a backend runs: by its name, or the formula."""
    dialect = backend.rpartition("_")[2]
    plain = "autograd" if dialect == "compile" else "formula"
    return dialect if dialect in DIALECTS else plain


def has_dialect(op: Op, backend: str) -> bool:
    """Whether a page has what a backend runs; no framework is imported for it."""
    try:
        op.said(dialect_of(backend), framework_of(backend))
    except Unsupported:
        return False
    return True


def affected(
    old: str,
    new: str,
    ops: Sequence[str] = (),
    backends: Sequence[str] = (),
    root: Path = ROOT,
) -> list[tuple[str, str]]:
    """Return op and backend of all that run different files at two commits.

    Without `ops` of all, and without `backends` of those that run by default. A page
    concerns its op, a backend's file that backend, any other file that a commit is
    measured by all of them. Raises NoCommit where one is no commit.
    """
    found = set[tuple[str, str]]()
    for file in map(Path, git.changed_between(old, new, *PROJECT.code, root=root)):
        whose, where = {*(ops or op_names())}, {*(backends or by_default())}
        folder = "" if file.stem.startswith("_") else str(file.parent)  # "_": shared
        if folder in PROJECT.ops:
            whose &= {file.stem}
        elif folder in PROJECT.backends:
            where &= {file.stem}
        found |= {*itertools.product(whose, where)}
    return sorted(found)
