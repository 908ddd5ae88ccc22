"""How far rounding alone may move each value of a graph: running error analysis.

Every node gets a magnitude E beside its value v, counted in units of the unit roundoff
u of the precision under test: an honest implementation in that precision lands within
about u * E of v. E obeys one rule per primitive (`ERROR`), the gradient is a node like
any other, and so its tolerance is derived rather than chosen.

The judge allows a deviation of limit * u * E. That, and not one radius, is what a rule
takes a value to be uncertain by where it is not linear: in the second-order terms
(u * Ea * Eb, expm1, a denominator that shrinks by its own error), without which the
radius of a constant row of layer_norm is four decades too small; and where it decides
whether a denominator may vanish or a choice may turn around. A weight that rounding may
turn around is off by 1 at most, so its E is 1 / (limit * u). Rules add the smallest
normal number where a product or quotient may underflow. What may overflow is a matter
apart (harness/judging/overflow.py): E goes on as if the range had no end.

Source: Wilkinson's running error analysis; Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 3.3; the bounds of single functions are mean-value bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging import rounding_choices, rounding_functions
from harness.judging.precisions import PRECISIONS as PRECISIONS
from harness.judging.precisions import Arithmetic
from harness.judging.precisions import Precision as Precision
from impls.graph import Node

Array = NDArray[Any]
Error = NDArray[np.float64]


@dataclass(frozen=True)
class Errors:
    """Of every node |v| and E, in units of the unit roundoff of `arithmetic`."""

    arithmetic: Arithmetic
    limit: float
    rules: Table
    sizes: dict[Node, Error]
    errors: dict[Node, Error]

    @property
    def reach(self) -> float:
        """The factor by which E becomes the deviation that the judge allows."""
        return self.limit * self.arithmetic.roundoff


def running_errors(
    order: Iterable[Node],
    arithmetic: Arithmetic,
    limit: float,
    table: Table | None = None,
) -> Errors:
    """E of every node, in units of the unit roundoff; inputs come before their users.

    Leaves are exact where the format holds their value; a constant that it must round
    (4.3, an eps of 1e-5) counts one rounding. Rules in `table` go before `ERROR`'s.
    """
    found = Errors(arithmetic, limit, {**ERROR, **(table or {})}, {}, {})
    with np.errstate(all="ignore"):
        for node in order:
            found.sizes[node] = _size(node, found.sizes)
            found.errors[node] = _error(node, found)
    return found


def local_errors(found: Errors) -> dict[Node, Error | None]:
    """What each node's own rounding adds, in E: None where it adds nothing."""
    own: dict[Node, Error | None] = {}
    with np.errstate(all="ignore"):
        for node in found.sizes:
            own[node] = _own_error(node, found)
    return own


def _own_error(node: Node, found: Errors) -> Error | None:
    if node.primitive is None:
        error = found.errors[node]
    else:
        rule = found.rules[node.primitive.name]
        if rule is copied or rule is _exact:
            return None
        exact = [np.zeros_like(found.sizes[source]) for source in node.inputs]
        error = _settled(np.asarray(rule(At(node, found, exact))), found.sizes[node])
    return error if error.any() else None


def _size(node: Node, sizes: dict[Node, Error]) -> Error:
    """Magnitudes in float64; elements that only move bring theirs along."""
    if node.primitive is not None and ERROR[node.primitive.name] is copied:
        sources = (sizes[source] for source in node.inputs)
        return np.asarray(node.primitive.compute(*sources, **node.attributes))
    size = np.asarray(node.value.astype(np.float64))
    return np.abs(size, out=size)


def longest_reduction(nodes: Iterable[Node]) -> int:
    """The largest number of terms that any sum or product among the nodes adds up."""
    return max(map(terms, nodes), default=1)


def terms(node: Node) -> int:
    """How many terms each element of a node adds up."""
    if node.primitive is None or not node.size:
        return 1
    if node.primitive.name == "matmul":
        return node.inputs[0].shape[-1]
    if node.primitive.name in ("sum", "sum_to"):
        return node.inputs[0].size // node.size
    if node.primitive.name == "cumulative_sum":
        return int(node.shape[node.attributes["axis"]])
    if node.primitive.name == "scatter_add":
        return int(_terms_of_scatter(node).max(initial=1))
    return 1


def _terms_of_scatter(node: Node) -> NDArray[np.intp]:
    """How many values a scatter_add adds up at each flat position."""
    places = node.attributes["index"]
    return np.bincount(places[places >= 0], minlength=node.size)


def _error(node: Node, found: Errors) -> Error:
    size = found.sizes[node]
    if node.primitive is None:
        exact = found.arithmetic.step.round(node.value) == node.value
        if exact.all():
            return np.zeros_like(size)
        off = np.abs(found.arithmetic.step.round(node.value) - node.value)
        lost = np.maximum(size, off.astype(np.float64) / found.arithmetic.roundoff)
        return np.where(exact | np.isnan(size), 0.0, lost)
    at = At(node, found, [found.errors[source] for source in node.inputs])
    error = np.asarray(found.rules[node.primitive.name](at), dtype=np.float64)
    if error.size and error.max() < np.inf:  # false for nan
        return error
    return _settled(error, size)


def _settled(error: Error, size: Error) -> Error:
    """An infinite value comes without a rounding error; elsewhere nan is no bound."""
    if error.size and error.max() < np.inf and size.max() < np.inf:  # false for nan
        return error
    return np.where(size == np.inf, 0.0, np.where(np.isnan(error), np.inf, error))


class At:
    """What a rule sees: magnitudes a, b of the inputs, their E, the node's own |v|.

    `u` times E is the deviation that the judge allows, hence `limit` roundoffs;
    `tiny` is the floor of underflow in units of E, and `sums` and `products` are the
    roundoffs inside a sum or matrix product likewise.
    """

    def __init__(self, node: Node, found: Errors, errors: list[Error]) -> None:
        arithmetic = found.arithmetic
        self.node, self.v = node, found.sizes[node]
        self.a = found.sizes[node.inputs[0]]
        self.b = found.sizes[node.inputs[-1]]
        self.e = errors
        self.u = found.reach
        self.roundoff = arithmetic.roundoff
        self.arithmetic = arithmetic
        self.tiny = arithmetic.step.smallest / arithmetic.roundoff
        self.sums = arithmetic.sums / arithmetic.roundoff
        self.products = arithmetic.products / arithmetic.roundoff
        least = arithmetic.step.least - arithmetic.step.digits
        self.log_least = math.log(2) * least - 1

    @property
    def underflow(self) -> Error | float:
        """A result that is not exactly zero may be flushed to it."""
        if self.v.size and self.v.min() > 0:
            return self.tiny
        nonzero: Error = (self.a != 0) & (self.b != 0)
        return nonzero * self.tiny


def _sum(at: At) -> Error:
    error: Error = at.e[0] + at.e[1]
    error += at.v
    return error


def _product(at: At) -> Error:
    (ea, eb), a, b = at.e, at.a, at.b
    error: Error = b * ea
    error += at.v
    error += at.underflow
    if eb.any():
        error += (a + at.u * ea) * eb
    if error.size and error.max() < np.inf:  # false for nan
        return error
    # What is exactly zero stays so, whatever finite number it is multiplied by.
    return _times(b, ea) + _times(a, eb) + at.u * _times(ea, eb) + at.v + at.underflow


def _times(a: Error, b: Error) -> Error:
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _quotient(at: At) -> Error:
    left = at.b - at.u * at.e[1]
    error: Error = at.v * at.e[1]
    error += at.e[0]
    error /= left
    error += at.v
    error += at.underflow
    if left.size and left.min() > 0:
        return error
    return np.where(left > 0, error, np.inf)


def _exp(at: At) -> Error:
    return _power(at, 1.0)


def _exp2(at: At) -> Error:
    return _power(at, math.log(2))


def _power(at: At, logarithm: float) -> Error:
    reach = logarithm * at.u * at.e[0]
    # Of 0 it is exactly 1 (IEEE 754-2019, 9.2.1): a softmax of one element is no noise.
    rounded = np.where((at.a == 0) & (at.e[0] == 0), 0.0, at.v + at.tiny)
    error: Error = at.v * np.expm1(reach) / at.u + rounded
    if error.size and at.v.min() > at.tiny * at.u and error.max() < np.inf:
        return error
    # Far below the smallest number it is zero, whatever the argument's error.
    gone = logarithm * at.node.inputs[0].value.astype(np.float64) + reach < at.log_least
    # All of it is lost: allowed four times, for the spread, which draws a part of it.
    # In extended precision what is lost may be too small for float64.
    lost = np.where(at.node.value != 0, np.maximum(at.v, np.finfo(float).tiny), 0.0)
    return np.where(gone, 4 * lost / at.u, error)


def _log(at: At) -> Error:
    left = at.a - at.u * at.e[0]
    return np.where(left > 0, at.e[0] / left + at.v, np.inf)


def _sqrt(at: At) -> Error:
    left = at.v * at.v - at.u * at.e[0]
    change = np.where(at.e[0] == 0, 0.0, at.e[0] / (at.v + np.sqrt(left)))
    return np.where(left >= 0, change + at.v, np.inf)


def _square(at: At) -> Error:
    e = at.e[0]
    return 2 * at.a * e + at.u * e * e + at.v + np.where(at.a != 0, at.tiny, 0.0)


def _wave(slope: Callable[[Error], Error]) -> Callable[[At], Error]:
    def rule(at: At) -> Error:
        e = at.e[0]
        first = np.abs(slope(at.a)) * e + at.u * e * e / 2  # |f''| <= 1
        return np.fmin(first, 2 / at.u) + at.v

    return rule


def _tanh(at: At) -> Error:
    e = at.e[0]
    first = (1 - at.v**2) * e + 0.39 * at.u * e * e  # |f''| <= 0.77
    return np.fmin(first, 2 / at.u) + at.v


def _sigmoid(at: At) -> Error:
    # s(a + h) - s(a) is at most min(s, 1 - s) * (exp|h| - 1) in magnitude.
    near = np.minimum(at.v, 1 - at.v)
    grown = near * np.expm1(at.u * at.e[0]) / at.u
    return np.fmin(grown, 1 / at.u) + at.v + at.tiny


def _reduction(at: At) -> Error:
    """One rounding of each term's magnitude; the limit allows for their number."""
    node = at.node
    assert node.primitive is not None
    add_up = node.primitive.compute
    if terms(node) == 1:
        return np.asarray(add_up(at.e[0], **node.attributes))
    if at.sums == 1:
        return np.asarray(add_up(at.e[0] + at.a, **node.attributes))
    # Added up in a wider type: one rounding of what comes out.
    inside = np.asarray(add_up(at.e[0] + at.sums * at.a, **node.attributes))
    return inside + at.v


def _scattered(at: At) -> Error:
    """A copy where at most one value lands, a reduction where several do."""
    node = at.node
    assert node.primitive is not None
    moved = np.asarray(node.primitive.compute(at.e[0], **node.attributes))
    several = (_terms_of_scatter(node) > 1).reshape(node.shape)
    if not several.any():
        return moved
    added = moved + at.sums * node.primitive.compute(at.a, **node.attributes)
    if at.sums != 1:
        added = added + at.v
    return np.where(several, added, moved)


def _flushed(a: Error, b: Error, smallest: float) -> Any:
    """What is lost where subnormal inputs are taken for zero.

    So do the bfloat16 products of processors (VDPBF16PS, Intel's SDM, volume 2).
    """
    small_a, small_b = (np.where(x < smallest, x, 0.0) for x in (a, b))
    if not (small_a.any() or small_b.any()):
        return 0.0
    return small_a @ b + a @ small_b


def _matmul(at: At) -> Error:
    (ea, eb), a, b = at.e, at.a, at.b
    rounded: Error = a @ b
    if at.sums != 1 or at.products != 1:
        inside = at.sums + 2 * at.products if at.products > 1 else at.sums
        rounded = inside * rounded + at.v
    rounded += at.tiny * a.shape[-1] * (at.v > 0)
    if at.arithmetic.stored.name == "bfloat16":
        rounded += _flushed(a, b, at.arithmetic.stored.smallest) / at.roundoff
    if not (ea.any() or eb.any()):
        return rounded
    carried: Error = a @ eb + ea @ b + at.u * (ea @ eb)
    return carried + rounded


def _selection(at: At) -> Error:
    """A weight of 0 or 1 is exact, unless rounding could turn the choice around."""
    a, b = (source.value for source in at.node.inputs)
    blur = at.u * (at.e[0] + at.e[1])
    return np.where((blur > 0) & (np.abs(a - b) <= blur), 1 / at.u, 0.0)


def _contested(at: At) -> NDArray[np.bool_]:
    """Elements that rounding could make, or unmake, the largest along the axis."""
    x, axis = at.node.inputs[0].value, at.node.attributes["axis"]
    if not at.e[0].any():
        return np.zeros(x.shape, bool)
    blur = at.u * at.e[0]
    if not x.size:
        return np.zeros(x.shape, bool)
    reach = np.max(x - blur, axis=axis, keepdims=True) - blur
    contenders = np.sum(x >= reach, axis=axis, keepdims=True)
    contested: NDArray[np.bool_] = (blur > 0) & (x >= reach) & (contenders > 1)
    return contested


def _pick(at: At) -> Error:
    return np.where(_contested(at), 1 / at.u, 0.0)


def _argmax(at: At) -> Error:
    contested = _contested(at).any(axis=at.node.attributes["axis"])
    return np.where(contested, np.inf, 0.0)


def _sign(at: At) -> Error:
    return np.where((at.e[0] > 0) & (at.a <= at.u * at.e[0]), 2 / at.u, 0.0)


def _largest(at: At) -> Error:
    axis, keepdims = (at.node.attributes[name] for name in ("axis", "keepdims"))
    return np.asarray(np.max(at.e[0], axis=axis, keepdims=keepdims, initial=0.0))


def copied(at: At) -> Error:
    """Elements that only move, or are copied, bring their E along."""
    assert at.node.primitive is not None
    return np.asarray(at.node.primitive.compute(*at.e, **at.node.attributes))


def _exact(at: At) -> Error:
    return np.zeros_like(at.v)


Table = dict[str, Callable[["At"], Error]]
ERROR: Table = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "divide": _quotient,
    "negative": lambda at: at.e[0],
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "sqrt": _sqrt,
    "square": _square,
    "sin": _wave(np.cos),
    "cos": _wave(np.sin),
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "sum": _reduction,
    "sum_to": _reduction,
    "matmul": _matmul,
    "maximum": lambda at: np.maximum(at.e[0], at.e[1]),
    "max": _largest,
    "abs": lambda at: at.e[0],
    "share": _selection,
    "pick": _pick,
    "sign": _sign,
    "argmax": _argmax,
    "stop_gradient": _exact,
    "reshape": copied,
    "permute_dims": copied,
    "broadcast_to": copied,
    "gather": copied,
    "scatter_add": _scattered,
    **rounding_functions.RULES,
    **rounding_choices.RULES,
}
#: Primitives that the engine of older commits has, whose history is judged today.
FORMER = {"take": copied, "put": copied}
ERROR |= FORMER
