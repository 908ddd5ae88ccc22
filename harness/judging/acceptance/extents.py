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
from gradwatch.harness.judging.rounding.errors import largest, smallest
from gradwatch.impls.graph import Node

Array = NDArray[Any]
Number = Any  # of all elements; or an array, of some


class Unknown(Exception):
    """A tensor has to be judged in full."""


class Extent(NamedTuple):
    """The largest magnitude and E of all elements of a node; or arrays, of some.

    Where all elements have one sign, `least` is the smallest magnitude, or less.
    """

    most: Number
    error: Number
    least: float | None = None


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
    (a,) = at.inputs
    count = at.node.inputs[0].size / max(at.value.size, 1)
    return count * (a.error + a.most)


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
    """tanh and sigmoid: slopes and second derivatives are at most 1."""
    (a,) = at.inputs
    return a.error + at.reach * a.error * a.error + at.most + at.tiny


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
    "tanh": _bounded,
    "sigmoid": _bounded,
    "max": lambda at: at.errors[0],
    "stop_gradient": lambda at: at.errors[0],
    "sum": _sum,
    "sum_to": _sum,
    "matmul": _contraction,
    **dict.fromkeys(MOVED, lambda at: at.errors[0]),
}

#: Rules that look at the values of this input when the node's own are there.
OF_VALUES = {"divide": 1, "sqrt": 0, "log": 0}
