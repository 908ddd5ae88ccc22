"""Functions of one element; erf and erfc are calculated in impls/graph/special.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradwatch.impls.graph import special
from gradwatch.impls.graph.engine import (
    Array,
    Builder,
    Node,
    as_array,
    broadcast,
    no_gradient,
    primitive,
    public,
    variable,
)

Slope = Callable[[Node, Node], Node]  # of the input a and the output y: dy/da


def _unary(name: str, compute: Callable[..., Any], slope: Slope) -> Builder:
    def rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
        return (dy * slope(a, y),)

    return public(primitive(name, compute, rule, floating=True, shape=broadcast))


def _or_method(function: Callable[..., Any], method: str) -> Callable[..., Any]:
    """NumPy's function; of numbers of an exact library, their method."""
    exact = np.frompyfunc(lambda number: getattr(number, method)(), 1, 1)
    return lambda x: as_array(exact(x) if x.dtype == object else function(x))


def _sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), without overflow for large negative x."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(x.dtype)


def _exp2(x: Array) -> Array:
    """Numbers of several precisions (object arrays) have powers, but no exp2."""
    return np.exp2(x) if x.dtype != object else np.asarray(2.0**x)


def number(value: float, like: Node) -> Node:
    """A whole number in the precision of `like`, exact numbers included."""
    kind = like.dtype.type if like.dtype != object else type(like.value.item(0))
    return variable(kind(value))


def _two_over_root_pi(like: Node) -> Node:
    """2 / sqrt(pi), a node, so that it carries its own rounding; pi is 4 atan(1)."""
    return sqrt(1.0 / atan(number(1, like)))


def _ln(value: float, like: Node) -> Node:
    """A logarithm in the precision of `like`; a node, as above."""
    return log(number(value, like))


exp = _unary("exp", np.exp, lambda a, y: y)
exp2 = _unary("exp2", _exp2, lambda a, y: y * _ln(2, y))
expm1 = _unary("expm1", np.expm1, lambda a, y: exp(a))
log: Builder = _unary("log", np.log, lambda a, y: 1.0 / a)
log1p = _unary("log1p", np.log1p, lambda a, y: 1.0 / (1.0 + a))
sqrt: Builder = _unary("sqrt", np.sqrt, lambda a, y: 0.5 / y)
square = _unary("square", np.square, lambda a, y: 2.0 * a)
sin = _unary("sin", np.sin, lambda a, y: cos(a))
cos: Builder = _unary("cos", np.cos, lambda a, y: -sin(a))
tan = _unary("tan", np.tan, lambda a, y: 1.0 + y * y)
asin = _unary(
    "asin",
    _or_method(np.arcsin, "asin"),
    lambda a, y: 1.0 / sqrt((1.0 - a) * (1.0 + a)),
)
acos = _unary(
    "acos",
    _or_method(np.arccos, "acos"),
    lambda a, y: -1.0 / sqrt((1.0 - a) * (1.0 + a)),
)
atan: Builder = _unary(
    "atan", _or_method(np.arctan, "atan"), lambda a, y: 1.0 / (1.0 + a * a)
)
sinh = _unary("sinh", np.sinh, lambda a, y: cosh(a))
cosh: Builder = _unary("cosh", np.cosh, lambda a, y: sinh(a))
tanh = _unary("tanh", np.tanh, lambda a, y: 1.0 - y * y)
asinh = _unary(
    "asinh", _or_method(np.arcsinh, "asinh"), lambda a, y: 1.0 / sqrt(1.0 + a * a)
)
acosh = _unary(
    "acosh",
    _or_method(np.arccosh, "acosh"),
    lambda a, y: 1.0 / sqrt((a - 1.0) * (a + 1.0)),
)
atanh = _unary(
    "atanh", _or_method(np.arctanh, "atanh"), lambda a, y: 1.0 / ((1.0 - a) * (1.0 + a))
)
sigmoid = _unary("sigmoid", _sigmoid, lambda a, y: y * (1.0 - y))
erf = _unary(
    "erf",
    _or_method(special.erf, "erf"),
    lambda a, y: _two_over_root_pi(a) * exp(-(a * a)),
)
erfc = _unary(
    "erfc",
    _or_method(special.erfc, "erfc"),
    lambda a, y: -(_two_over_root_pi(a) * exp(-(a * a))),
)


@public
def log2(x: Any) -> Node:
    """The logarithm to base 2."""
    y = log(x)
    return y / _ln(2, y)


@public
def log10(x: Any) -> Node:
    """The logarithm to base 10."""
    y = log(x)
    return y / _ln(10, y)


# Steps: whole numbers, constant between their jumps ----------------------------------

STEPS = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}
_step = primitive("step", lambda x, how: STEPS[how](x), no_gradient, shape=broadcast)


@public
def floor(x: Any) -> Node:
    """The largest whole number that is no larger."""
    return _step(x, how="floor")


@public
def ceil(x: Any) -> Node:
    """The smallest whole number that is no smaller."""
    return _step(x, how="ceil")


@public
def trunc(x: Any) -> Node:
    """The whole number towards zero."""
    return _step(x, how="trunc")


@public
def round(x: Any) -> Node:
    """The nearest whole number; halves go to the even one."""
    return _step(x, how="round")
