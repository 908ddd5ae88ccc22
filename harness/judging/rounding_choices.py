"""Running errors of comparisons, logic and `where`.

A truth value is exact, or rounding can turn it around; then it is off by 1, which is
an E of 1 / u. `where` pays the difference of its branches, and no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from harness.judging.rounding import At

Error = NDArray[np.float64]


def _compare(at: At) -> Error:
    a, b = (source.value for source in at.node.inputs)
    if not (at.e[0].any() or at.e[1].any()):
        return np.zeros_like(at.v)
    blur = at.u * (at.e[0] + at.e[1])
    certain = np.abs(a.astype(float) - b.astype(float)) > blur  # false for nan
    return np.where((blur > 0) & ~certain, 1 / at.u, 0.0)


def _logical(at: At) -> Error:
    """A certain False settles an `and`, a certain True an `or`, whatever the other."""
    values = [source.value for source in at.node.inputs]
    blur = np.maximum(at.e[0], at.e[1])
    settles = {"and": False, "or": True}.get(at.node.attributes["how"])
    if settles is None:
        return np.asarray(blur)
    settled = [(v == settles) & (e == 0) for v, e in zip(values, at.e, strict=True)]
    return np.where(settled[0] | settled[1], 0.0, blur)


def _where(at: At) -> Error:
    c, a, b = (source.value for source in at.node.inputs)
    of_c, of_a, of_b = at.e
    error: Error = np.where(c, of_a, of_b)
    if not of_c.any():
        return error
    apart = np.where(a == b, 0.0, np.abs(a - b).astype(np.float64))
    return np.where(of_c > 0, np.maximum(of_a, of_b) + apart / at.u, error)


RULES: dict[str, Callable[[At], Error]] = {
    "compare": _compare,
    "logical": _logical,
    "where": _where,
}
