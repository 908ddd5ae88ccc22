"""Addition, subtraction, multiplication, division, and powers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwatch.impls.graph.choices import equal, greater_equal, logical_and, where
from gradwatch.impls.graph.elementwise import floor, log, sqrt, square
from gradwatch.impls.graph.engine import (
    FLOATING,
    NUMBER,
    Builder,
    Node,
    as_nodes,
    broadcast,
    broadcasting,
    fit,
    primitive,
    public,
    variable,
)
from gradwatch.impls.graph.moves import stop_gradient
from gradwatch.impls.graph.selection import abs, maximum


def _subtract_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """Negate after the sum over broadcast axes, which leaves fewer elements."""
    return fit(dy, y.shape, a.shape), -fit(dy, y.shape, b.shape)


def _divide_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    da = dy / b
    return fit(da, y.shape, a.shape), -fit(da * y, y.shape, b.shape)


@broadcasting
def _pow_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    """With exponent 0 the power is constant; 0 to any power stays 0."""
    # For a constant exponent, compute b - 1 exactly: if it were rounded, (-2)**2 would
    # be nan.
    less = variable(b.value - 1) if b.attributes == NUMBER else b - 1.0
    slope = where(equal(b, 0.0), 0.0, b * _pow(a, less))
    flat = logical_and(equal(a, 0.0), greater_equal(b, 0.0))
    growth = where(flat, 0.0, y * log(where(flat, 1.0, a)))
    return dy * slope, dy * growth


@broadcasting
def _atan2_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    squares = a * a + b * b
    return dy * (b / squares), -(dy * (a / squares))


_sum_rule = broadcasting(lambda dy, y, a, b: (dy, dy))
_product_rule = broadcasting(lambda dy, y, a, b: (dy * b, dy * a))
add = public(primitive("add", np.add, _sum_rule, shape=broadcast))
subtract = public(primitive("subtract", np.subtract, _subtract_rule, shape=broadcast))
multiply = public(primitive("multiply", np.multiply, _product_rule, shape=broadcast))
divide = public(
    primitive("divide", np.divide, _divide_rule, floating=True, shape=broadcast)
)
negative = public(
    primitive("negative", np.negative, lambda dy, y, a: (-dy,), shape=broadcast)
)
_pow = primitive("pow", np.power, _pow_rule, floating=True, shape=broadcast)


def _atan2(a: Any, b: Any) -> Any:
    if a.dtype != object:
        return np.arctan2(a, b)
    return np.frompyfunc(lambda s, t: type(s).atan2(s, t), 2, 1)(a, b)


atan2 = public(primitive("atan2", _atan2, _atan2_rule, floating=True, shape=broadcast))


@public
def positive(x: Any) -> Node:
    """x itself, as a node."""
    return as_nodes((x,))[0]


@public
def reciprocal(x: Any) -> Node:
    """1 / x."""
    return divide(1.0, x)


@public
def rsqrt(x: Any) -> Node:
    """1 / sqrt(x)."""
    return divide(1.0, sqrt(x))


_WRITTEN_OUT: dict[float, Builder] = {
    -1: reciprocal,
    0.5: sqrt,
    1: positive,
    2: square,
}


@public
def pow(a: Any, b: Any) -> Node:
    """a to the power of b; b of 2, 1, 1/2, -1 is written out."""
    plain = isinstance(a, Node) and a.dtype.kind in FLOATING and type(b) in (int, float)
    if plain and b in _WRITTEN_OUT:
        return _WRITTEN_OUT[b](a)
    return _pow(a, b)


@public
def hypot(a: Any, b: Any) -> Node:
    """sqrt(a^2 + b^2), scaled so that squares neither overflow nor underflow."""
    a, b = as_nodes((a, b), floating=True)
    largest = stop_gradient(maximum(abs(a), abs(b)))  # the root is homogeneous in it
    scale = where(logical_and(largest > 0.0, largest < np.inf), largest, 1.0)
    return scale * sqrt(square(a / scale) + square(b / scale))


@public
def floor_divide(a: Any, b: Any) -> Node:
    """The largest whole number that is not above a / b."""
    return floor(divide(a, b))


@public
def remainder(a: Any, b: Any) -> Node:
    """a - b * floor(a / b): it has the sign of b."""
    return subtract(a, multiply(b, floor_divide(a, b)))
