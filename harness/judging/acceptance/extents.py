"""Magnitude and running error of whole nodes: rules of numbers instead of arrays.

Each is that of harness/judging/rounding, of the largest magnitudes and E of the inputs:
an upper bound for all elements. Of arrays for some elements it is the rule itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.acceptance.least_spread import MOVED
from gradwatch.harness.judging.rounding.errors import largest, smallest, terms
from gradwatch.impls.graph import Node

Array = NDArray[Any]
Number = Any  # of all elements; or an array, of some


class Unknown(Exception):
    """A tensor has to be judged in full."""


class Extent(NamedTuple):
    """The largest magnitude and E of all elements of a node; or arrays, of some.

    Where all elements have one sign, `least` is the smallest magnitude, or less.
    `infinite` elements are not counted: a mask made them so.
    """

    most: Number
    error: Number
    least: float | None = None
    infinite: bool = False


def magnitudes(value: Array) -> tuple[float, float | None]:
    """The largest magnitude, nan if there is one; the smallest, if signs are alike."""
    if not value.size:
        return 0.0, None
    low, high = float(smallest(value)), float(largest(value))
    most = max(high, -low)
    return most, min(abs(low), abs(high)) if low * high > 0 else None


class View(NamedTuple):
    """What a rule sees of a node: its inputs' extents, and its own magnitude `most`.

    Numbers for all elements, or arrays for some. `reach` times E is the deviation that
    the judge allows, or more; `tiny` is the floor of underflow in units of E.
    """

    node: Node
    value: Array
    inputs: Sequence[Extent]
    most: Number
    reach: float
    tiny: float
    given: Sequence[Array] | None = None

    def values(self, i: int) -> Array:
        """An input's values: all, or those of some elements."""
        return self.node.inputs[i].value if self.given is None else self.given[i]

    @property
    def errors(self) -> list[Number]:
        """E of each input."""
        return [extent.error for extent in self.inputs]

    def lowest(self, i: int) -> Number:
        """The least magnitude of an input, less what it may be off by; or nan."""
        extent = self.inputs[i]
        low = extent.most
        if isinstance(low, np.ndarray):
            left = low - self.reach * extent.error
            return np.where(left > 0, left, np.nan)
        if (low := extent.least) is None:
            low = smallest(np.abs(self.node.inputs[i].value))
        left = float(low - self.reach * extent.error)
        return left if left > 0 else math.nan


Rule = Callable[[View], Number]


def _product(at: View) -> Number:
    a, b = at.inputs
    cross = a.most * b.error + b.most * a.error + at.reach * a.error * b.error
    return cross + at.most + at.tiny


def _quotient(at: View) -> Number:
    ea, eb = at.errors
    return (ea + at.most * eb) / at.lowest(1) + at.most + at.tiny


def _exponential(at: View) -> Number:
    reach = at.reach
    grown = np.expm1(reach * at.errors[0]) / reach
    return at.most * grown + at.most + at.tiny


def _root(at: View) -> Number:
    return at.errors[0] / np.sqrt(at.lowest(0)) + at.most


def _square(at: View) -> Number:
    (a,) = at.inputs
    squared = 2 * a.most * a.error + at.reach * a.error * a.error
    return squared + at.most + at.tiny


def _sum(at: View) -> Number:
    (a,), count = at.inputs, terms(at.node)
    return count * (a.error + a.most) if count > 1 else a.error


#: Sums of squares of rows and of columns.
_SQUARES = ("...ij,...ij->...i", "...ij,...ij->...j")


def _contraction(at: View) -> Number:
    """|a| |b| is at most the product of norms of a row and a column."""
    (a, b), count = at.inputs, at.node.inputs[0].shape[-1]
    rows, columns = (
        math.sqrt(float(np.max(np.einsum(form, s.value, s.value))))
        for form, s in zip(_SQUARES, at.node.inputs, strict=True)
    )
    cross = a.most * b.error + b.most * a.error + at.reach * a.error * b.error
    return rows * columns + count * (cross + at.tiny)


def _bounded(at: View) -> Number:
    """Slopes and second derivatives are at most 2 / sqrt(pi)."""
    (a,) = at.inputs
    return 1.13 * (a.error + at.reach * a.error * a.error) + at.most + at.tiny


def _turns(at: View) -> Number:
    """A choice between two numbers: off by all where rounding may turn it."""
    a, b = at.values(0), at.values(-1)
    blur = at.reach * (at.errors[0] + at.errors[-1])
    near = (np.abs(np.subtract(a, b, dtype=np.float64)) <= blur) & (blur > 0)
    return near / at.reach if at.given is not None else near.any() / at.reach


def _share(at: View) -> Number:
    """As above; at a tie the gradient is a set."""
    if at.given is None and (at.values(0) == at.values(1)).any():
        raise Unknown
    return _turns(at)


def _pick(at: View) -> Number:
    x, axis, (error,) = at.values(0), at.node.attributes["axis"], at.errors
    near = x >= np.max(x, axis=axis, keepdims=True) - 2 * at.reach * error
    if np.count_nonzero(near) == near.size // x.shape[axis]:
        return 0.0
    if not error:
        raise Unknown
    return 1 / at.reach


def _logical(at: View) -> Number:
    return np.maximum(at.errors[0], at.errors[-1])


def _where(at: View) -> Number:
    of_c, of_a, of_b = at.errors
    apart = (at.inputs[1].most + at.inputs[2].most) / at.reach
    return np.maximum(of_a, of_b) + np.where(of_c > 0, apart, 0.0)


RULES: dict[str, Rule] = {
    "add": lambda at: sum(at.errors) + at.most,
    "subtract": lambda at: sum(at.errors) + at.most,
    "multiply": _product,
    "divide": _quotient,
    "negative": lambda at: at.errors[0],
    "exp": _exponential,
    "exp2": _exponential,
    "sqrt": _root,
    "square": _square,
    "log": lambda at: at.errors[0] / at.lowest(0) + at.most,
    **dict.fromkeys(("tanh", "sigmoid", "sin", "cos", "atan", "erf"), _bounded),
    "maximum": lambda at: np.maximum(*at.errors),
    **dict.fromkeys(("sum", "sum_to", "scatter_add", "cumulative_sum"), _sum),
    "matmul": _contraction,
    "compare": _turns,
    "share": _share,
    "pick": _pick,
    "logical": _logical,
    "where": _where,
    "gather": lambda at: max(at.errors),
    **dict.fromkeys((*MOVED, "abs", "max", "stop_gradient"), lambda at: at.errors[0]),
}

#: Rules that look at the values of this input when the node's own are there.
OF_VALUES = {"divide": 1, "sqrt": 0, "log": 0}
