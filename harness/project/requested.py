"""Backends that run only where they are named, because of what they cost.

The file of such a backend says so, in a line of its docstring: "On request: ", and the
cost. Whole frameworks are on request, too, until their environment is made
(`gradwatch.harness.workers.pythons.interpreters.on_request`).
"""

from __future__ import annotations

import contextlib
import functools
import re
from pathlib import Path

from gradwatch.impls import catalogue
from gradwatch.impls.catalogue import backend_names


class Required(Exception):
    """A required backend or device is not here; the message says why."""

    exit_code = 3


def cost_of(backend: str) -> str:
    """What a backend costs that runs only on request; "" for the others."""
    return _cost_in(Path(catalogue.__file__).parent / "backends" / f"{backend}.py")


@functools.cache  # both lists below ask for it
def _cost_in(file: Path) -> str:
    with contextlib.suppress(OSError):  # a project's own is no file of ours
        if line := re.search(r"^On request: (.+)$", file.read_text("utf-8"), re.M):
            return line[1]
    return ""


def by_default() -> tuple[str, ...]:
    """Names of the backends that run where none is named."""
    return tuple(name for name in backend_names() if not cost_of(name))


def left_out() -> dict[str, str]:
    """Why the others do not, and how to ask for one."""
    return {
        name: f"runs only on request ({cost}); --backend {name} asks for it"
        for name in backend_names()
        if (cost := cost_of(name))
    }
