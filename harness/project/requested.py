"""Backends that run only where they are named, because of what they cost.

The traits of such a backend say the cost. Whole frameworks are on request, too, until
their environment is made (`gradwatch.harness.workers.pythons.interpreters.on_request`).
"""

from __future__ import annotations

from gradwatch.harness.project.traits import traits_of
from gradwatch.impls.catalogue import backend_names


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
