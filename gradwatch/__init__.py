"""Is the gradient right, is it still fast, and since when: the public names.

    gradwatch.check           a function of yours judged against any PyTorch function
    gradwatch.gradcheck       called as PyTorch's, in any precision; gradgradcheck too
    gradwatch.jax             check_grads, called as JAX's
    gradwatch.judge           what is wrong with gradients that you have computed
    gradwatch.assert_agrees   the same, raising AssertionError
    gradwatch.Op, Case        a page about an operation of your own
    gradwatch.find_changes    steps and slow drift in a series of measurements

Importing gradwatch imports NumPy alone: each name is loaded at its first use. If it
needs a package that is not installed, one line names this and the extra that brings it.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from gradwatch._extras import Missing, explained

if TYPE_CHECKING:
    from gradwatch.harness.check import check, gradcheck, gradgradcheck
    from gradwatch.harness.diagnosis.entry import assert_agrees, judge
    from gradwatch.harness.history.changepoints import Change, find_changes
    from gradwatch.harness.judging.judgement import Judgement
    from gradwatch.impls.contract import Case, Op

__all__ = [
    "Case",
    "Change",
    "Judgement",
    "Missing",
    "Op",
    "assert_agrees",
    "check",
    "find_changes",
    "gradcheck",
    "gradgradcheck",
    "judge",
]


def __getattr__(name: str) -> Any:
    """Load a public name at its first use (PEP 562).

    Raises:
        AttributeError: There is no such name.
        Missing: It needs a package that is not installed.
    """
    if name == "jax":
        with explained("gradwatch.jax"):
            return importlib.import_module("gradwatch.jax")
    if name not in __all__:
        raise AttributeError(f"module 'gradwatch' has no attribute {name!r}")
    with explained(f"gradwatch.{name}"):
        globals()[name] = value = _loaded(name)
    return value


def _loaded(name: str) -> Any:
    from gradwatch.harness.project import paths  # noqa: F401  # finds the project and its pages

    home: Any
    if name in ("Case", "Op"):
        from gradwatch.impls import contract as home
    elif "check" in name:
        if importlib.util.find_spec("jax") is None:
            import torch  # noqa: F401, TID251  # absent: said before all else is loaded

        from gradwatch.harness import check as home
    else:
        if name in ("Change", "find_changes"):
            import ruptures  # noqa: F401  # which is loaded by its first call otherwise

        from gradwatch import harness as home
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
