"""The backends that run an op: its page has their dialect, and they are not costly.

A costly backend runs on request; its traits state the cost. Some whole frameworks do,
until their environment is made (`gradwatch.harness.workers.interpreters.on_request`).
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
    """A required backend or device is missing; the message says why."""

    exit_code = 3


def by_default() -> tuple[str, ...]:
    """The names of the backends that run where none is named."""
    return tuple(name for name in backend_names() if not traits_of(name).on_request)


def left_out() -> dict[str, str]:
    """The reason why each other backend does not, and the option that runs it."""
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
    """Whether a page has the dialect of a backend; imports no framework."""
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
    """Return the pairs of op and backend whose files differ between two commits.

    By default, `ops` are all and `backends` those that run by default. A page concerns
    its op, a backend's file that backend, any other file of `Project.code` all of them.
    Raises NoCommit where one is no commit.
    """
    found = set[tuple[str, str]]()
    asked = "diff", "--name-only", "-z", old, new, "--", *PROJECT.code
    for file in map(Path, git.listed(*asked, root=root)):
        whose, where = {*(ops or op_names())}, {*(backends or by_default())}
        folder = "" if file.stem.startswith("_") else str(file.parent)  # "_": shared
        if folder in PROJECT.ops:
            whose &= {file.stem}
        elif folder in PROJECT.backends:
            where &= {file.stem}
        found |= {*itertools.product(whose, where)}
    return sorted(found)
