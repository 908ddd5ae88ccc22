"""Which backends run an op: those whose dialect its page has, and not too costly.

The traits of such a backend say the cost. Whole frameworks are on request, too, until
their environment is made (`gradwatch.harness.workers.interpreters.on_request`).
"""

from __future__ import annotations

from gradwatch.harness.project.traits import traits_of
from gradwatch.impls.catalogue import backend_names, framework_of
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
    return dialect if dialect in DIALECTS else "formula"


def has_dialect(op: Op, backend: str) -> bool:
    """Whether a page has what a backend runs; no framework is imported for it."""
    try:
        op.said(dialect_of(backend), framework_of(backend))
    except Unsupported:
        return False
    return True
