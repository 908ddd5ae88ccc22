"""The judge for functions of JAX's, called as JAX's own checks are.

gradwatch.jax.check(f, candidate, shapes=[(64, 1000)])
gradwatch.jax.check_grads(f, (x,), order=1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gradwatch.harness.check.choice import Choice
from gradwatch.harness.check.entry import Session, check

__all__ = ["check", "check_grads"]

#: The notice for arguments of JAX's check that a derived tolerance does not need.
IGNORED = "atol, rtol and eps are not used: the tolerance is derived"


def check_grads(
    f: Callable[..., Any],
    args: Sequence[Any],
    order: int = 1,
    modes: Sequence[str] = ("fwd", "rev"),
    atol: float | None = None,
    rtol: float | None = None,
    eps: float | None = None,
) -> None:
    """Judge the derivatives of a function at some arguments.

    `jax.test_util.check_grads` takes the same, and compares with differences of the
    function at tolerances of its own; here its own forward is the definition.

    Args:
        f: Takes the arguments, returns arrays.
        args: Arrays, trees of them, or numbers.
        order: 1: the gradient; 2: also the double backward.
        modes: "fwd": forward mode; "rev": reverse mode.
        atol, rtol, eps: Not used.

    Raises:
        AssertionError: With the table of `check`.
        ValueError: Another order or mode.
    """
    if order not in (1, 2) or not {*modes} <= {"fwd", "rev"} or not modes:
        raise ValueError('order is 1 or 2, modes are of "fwd" and "rev"')
    orders = ["jvp"] * ("fwd" in modes) + ["vjp"] * ("rev" in modes)
    for each in [*orders, *["hvp"] * (order == 2)]:
        session = Session(f, order=each, choice=Choice(quick=True), of_jax=(True, True))
        if (atol, rtol, eps) != (None, None, None):
            session.notes.append(IGNORED)
        session.run(inputs={"given": tuple(args)}).assert_ok()
