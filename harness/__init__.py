"""Judging gradients and times: is it right, is it fast, since when.

For a gradient of your own: `judge` says what is wrong with it, `assert_agrees` raises
if anything is. For a series of your own, night by night: `find_changes` finds steps and
slow drift. None of them imports a framework; all take NumPy arrays.

Each is loaded at its first use: every worker imports this, and needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradwatch.harness.diagnosis.entry import assert_agrees, judge
    from gradwatch.harness.history.changepoints import Change, find_changes
    from gradwatch.harness.judging.judgement import Judgement

__all__ = ["Change", "Judgement", "assert_agrees", "find_changes", "judge"]

_HOMES = {
    "Change": "history.changepoints",
    "Judgement": "judging.judgement",
    "assert_agrees": "diagnosis.entry",
    "find_changes": "history.changepoints",
    "judge": "diagnosis.entry",
}


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
