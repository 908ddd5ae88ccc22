"""How far rounding alone may move each value of a graph: running error analysis.

Every node gets a magnitude E beside its value v, counted in units of the unit roundoff
u of the precision under test: an honest implementation in that precision lands within
about u * E of v. E obeys one rule per primitive (`ERROR`), the gradient is a node like
any other, and so its tolerance is derived rather than chosen.

Rules keep the second-order terms (u * Ea * Eb, expm1, a denominator that shrinks by its
own error): without them the radius of a constant row of layer_norm is four decades too
small. They add the smallest normal number where a product or quotient may underflow.
A value that may overflow, or a denominator that may vanish, has an infinite radius.

Source: Wilkinson's running error analysis; Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 3.3; the bounds of single functions are mean-value bounds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging import rounding_choices, rounding_functions
from impls.graph import Node

Array = NDArray[Any]
Error = NDArray[np.float64]


@dataclass(frozen=True)
class Precision:
    """A floating-point format (IEEE 754-2019, table 3.1; bfloat16: Intel 2018).

    `digits` counts the bits of the significand, `least` and `most` are the exponents
    of the smallest normal number and of the first power of two that overflows.
    """

    name: str
    digits: int
    least: int
    most: int

    @functools.cached_property
    def roundoff(self) -> float:
        """Unit roundoff u: the largest relative error of rounding to nearest."""
        return math.ldexp(1.0, -self.digits)

    @functools.cached_property
    def smallest(self) -> float:
        """Smallest normal number."""
        return math.ldexp(1.0, self.least)

    @functools.cached_property
    def largest(self) -> float:
        """Largest finite number."""
        return math.ldexp(2.0 - 2.0 ** (1 - self.digits), self.most - 1)

    def round(self, values: Array) -> Array:
        """The nearest numbers of this format, kept in the dtype of `values`.

        Ties go to even; subnormal numbers and overflow are those of the format.
        """
        with np.errstate(all="ignore"):
            if self.name != "bfloat16":
                return values.astype(self.name).astype(values.dtype)
            _, exponent = np.frexp(values)
            finest = np.maximum(exponent, self.least + 1) - self.digits
            rounded = np.ldexp(np.rint(np.ldexp(values, -finest)), finest)
            too_large = np.abs(rounded) > self.largest
            return np.where(too_large, np.copysign(np.inf, values), rounded)


PRECISIONS = {
    p.name: p
    for p in (
        Precision("float64", 53, -1022, 1024),
        Precision("float32", 24, -126, 128),
        Precision("float16", 11, -14, 16),
        Precision("bfloat16", 8, -126, 128),
    )
}


def running_errors(order: Iterable[Node], precision: Precision) -> dict[Node, Error]:
    """E of every node, in units of the unit roundoff; inputs come before their users.

    Leaves are exact where the format holds their value; a constant that it must round
    (4.3, an eps of 1e-5) counts one rounding.
    """
    errors: dict[Node, Error] = {}
    sizes: dict[Node, Error] = {}
    with np.errstate(all="ignore"):
        for node in order:
            sizes[node] = _size(node, sizes)
            errors[node] = _error(node, sizes, errors, precision)
    return errors


def _size(node: Node, sizes: dict[Node, Error]) -> Error:
    """Magnitudes in float64; elements that only move bring theirs along."""
    if node.primitive is not None and ERROR[node.primitive.name] is _copied:
        sources = (sizes[source] for source in node.inputs)
        return np.asarray(node.primitive.compute(*sources, **node.attributes))
    size = np.asarray(node.value.astype(np.float64))
    return np.abs(size, out=size)


def longest_reduction(nodes: Iterable[Node]) -> int:
    """The largest number of terms that any sum or product among the nodes adds up."""
    return max(map(_terms, nodes), default=1)


def _terms(node: Node) -> int:
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


def _error(
    node: Node,
    sizes: dict[Node, Error],
    errors: dict[Node, Error],
    precision: Precision,
) -> Error:
    if node.primitive is None:
        exact = precision.round(node.value) == node.value
        if exact.all():
            return np.zeros_like(sizes[node])
        return np.where(exact, 0.0, sizes[node])
    at = _At(node, sizes, errors, precision)
    error = np.asarray(ERROR[node.primitive.name](at), dtype=np.float64)
    if error.size and at.v.max() + at.u * error.max() <= precision.largest:
        return error
    sound = at.v + at.u * error <= precision.largest  # false for nan
    return np.where(sound, error, np.inf)


class _At:
    """What a rule sees: magnitudes a, b of the inputs, their E, the node's own |v|."""

    def __init__(
        self,
        node: Node,
        sizes: dict[Node, Error],
        errors: dict[Node, Error],
        precision: Precision,
    ) -> None:
        self.node, self.v = node, sizes[node]
        self.a, self.b = sizes[node.inputs[0]], sizes[node.inputs[-1]]
        self.e = [errors[source] for source in node.inputs]
        self.u = precision.roundoff
        self.tiny = precision.smallest / precision.roundoff

    @property
    def underflow(self) -> Error | float:
        """A result that is not exactly zero may be flushed to it."""
        if self.v.size and self.v.min() > 0:
            return self.tiny
        nonzero: Error = (self.a != 0) & (self.b != 0)
        return nonzero * self.tiny


def _sum(at: _At) -> Error:
    error: Error = at.e[0] + at.e[1]
    error += at.v
    return error


def _product(at: _At) -> Error:
    (ea, eb), a, b = at.e, at.a, at.b
    error: Error = b * ea
    error += at.v
    error += at.underflow
    if eb.any():
        error += (a + at.u * ea) * eb
    if error.size and error.max() < np.inf:  # false for nan
        return error
    # An exact zero times something unbounded is still zero, not nan.
    cross = np.where(b == 0, 0, b * ea) + np.where(a == 0, 0, a * eb)
    return cross + at.u * _times(ea, eb) + at.v + at.underflow


def _times(a: Error, b: Error) -> Error:
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _quotient(at: _At) -> Error:
    left = at.b - at.u * at.e[1]
    error: Error = at.v * at.e[1]
    error += at.e[0]
    error /= left
    error += at.v
    error += at.underflow
    if left.size and left.min() > 0:
        return error
    return np.where(left > 0, error, np.inf)


def _exp(at: _At) -> Error:
    return at.v * np.expm1(at.u * at.e[0]) / at.u + at.v + at.tiny


def _exp2(at: _At) -> Error:
    grown = np.expm1(math.log(2) * at.u * at.e[0]) / at.u
    return at.v * grown + at.v + at.tiny


def _log(at: _At) -> Error:
    left = at.a - at.u * at.e[0]
    return np.where(left > 0, at.e[0] / left + at.v, np.inf)


def _sqrt(at: _At) -> Error:
    left = at.v * at.v - at.u * at.e[0]
    change = np.where(at.e[0] == 0, 0.0, at.e[0] / (at.v + np.sqrt(left)))
    return np.where(left >= 0, change + at.v, np.inf)


def _square(at: _At) -> Error:
    e = at.e[0]
    return 2 * at.a * e + at.u * e * e + at.v + np.where(at.a != 0, at.tiny, 0.0)


def _wave(slope: Callable[[Error], Error]) -> Callable[[_At], Error]:
    def rule(at: _At) -> Error:
        e = at.e[0]
        first = np.abs(slope(at.a)) * e + at.u * e * e / 2  # |f''| <= 1
        return np.minimum(first, 2 / at.u) + at.v

    return rule


def _tanh(at: _At) -> Error:
    e = at.e[0]
    return (1 - at.v**2) * e + 0.39 * at.u * e * e + at.v  # |f''| <= 0.77


def _sigmoid(at: _At) -> Error:
    # s(a + h) - s(a) is at most min(s, 1 - s) * (exp|h| - 1) in magnitude.
    near = np.minimum(at.v, 1 - at.v)
    grown = np.where(near == 0, 0.0, near * np.expm1(at.u * at.e[0]) / at.u)
    return grown + at.v + at.tiny


def _reduction(at: _At) -> Error:
    """One rounding of each term's magnitude; the limit allows for their number."""
    node = at.node
    assert node.primitive is not None
    add_up = node.primitive.compute
    terms = at.e[0] + at.a if _terms(node) > 1 else at.e[0]
    return np.asarray(add_up(terms, **node.attributes))


def _scattered(at: _At) -> Error:
    """A copy where at most one value lands, a reduction where several do."""
    node = at.node
    assert node.primitive is not None
    moved = np.asarray(node.primitive.compute(at.e[0], **node.attributes))
    several = (_terms_of_scatter(node) > 1).reshape(node.shape)
    if not several.any():
        return moved
    added = moved + node.primitive.compute(at.a, **node.attributes)
    return np.where(several, added, moved)


def _matmul(at: _At) -> Error:
    (ea, eb), a, b = at.e, at.a, at.b
    rounded: Error = a @ b + at.tiny * a.shape[-1] * (at.v > 0)
    if not (ea.any() or eb.any()):
        return rounded
    carried: Error = a @ eb + ea @ b + at.u * (ea @ eb)
    return carried + rounded


def _selection(at: _At) -> Error:
    """A weight of 0 or 1 is exact, unless rounding could turn the choice around."""
    a, b = (source.value for source in at.node.inputs)
    blur = at.u * (at.e[0] + at.e[1])
    return np.where((blur > 0) & (np.abs(a - b) <= blur), np.inf, 0.0)


def _contested(at: _At) -> NDArray[np.bool_]:
    """Elements that rounding could make, or unmake, the largest along the axis."""
    x, axis = at.node.inputs[0].value, at.node.attributes["axis"]
    blur = at.u * at.e[0]
    if not x.size:
        return np.zeros(x.shape, bool)
    reach = np.max(x - blur, axis=axis, keepdims=True) - blur
    contenders = np.sum(x >= reach, axis=axis, keepdims=True)
    contested: NDArray[np.bool_] = (blur > 0) & (x >= reach) & (contenders > 1)
    return contested


def _pick(at: _At) -> Error:
    return np.where(_contested(at), np.inf, 0.0)


def _argmax(at: _At) -> Error:
    contested = _contested(at).any(axis=at.node.attributes["axis"])
    return np.where(contested, np.inf, 0.0)


def _sign(at: _At) -> Error:
    return np.where((at.e[0] > 0) & (at.a <= at.u * at.e[0]), np.inf, 0.0)


def _largest(at: _At) -> Error:
    axis, keepdims = (at.node.attributes[name] for name in ("axis", "keepdims"))
    return np.asarray(np.max(at.e[0], axis=axis, keepdims=keepdims, initial=0.0))


def _copied(at: _At) -> Error:
    assert at.node.primitive is not None
    return np.asarray(at.node.primitive.compute(*at.e, **at.node.attributes))


def _exact(at: _At) -> Error:
    return np.zeros_like(at.v)


ERROR: dict[str, Callable[[_At], Error]] = {
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
    "reshape": _copied,
    "permute_dims": _copied,
    "broadcast_to": _copied,
    "gather": _copied,
    "scatter_add": _scattered,
    **rounding_functions.RULES,
    **rounding_choices.RULES,
}
#: Primitives that the engine of older commits has, whose history is judged today.
FORMER = {"take": _copied, "put": _copied}
ERROR |= FORMER
