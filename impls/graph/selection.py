"""Maxima, minima, signs: the gradient at a tie is a set; `ties` selects a member.

Minima are maxima of the negative: one set of rules, and negation is exact.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.impls.graph.choices import ran
from gradwatch.impls.graph.engine import (
    FLOATING,
    Array,
    Node,
    Primitive,
    as_array,
    as_nodes,
    axes_of,
    broadcast,
    broadcasting,
    no_gradient,
    primitive,
    public,
    reduced,
    setting,
)
from gradwatch.impls.graph.moves import broadcast_to, reshape, together

TIES = ("first", "last", "even")
#: As "even", and operations that move an element by its index (sort, a maximum with its
#: index) share among equal ones, too; otherwise these use the index that they have.
SHARED = "shared"
#: As "even", and a number first that is met as a bound: relu and clamp have one slope.
BOUNDED = "even but at bounds"


@dataclass(frozen=True)
class Choice:
    """A choice of the largest: along an axis of a tensor, or element by element."""

    among: tuple[Node, ...]
    axis: int | None = None
    indexed: bool = False

    @property
    def bounded(self) -> bool:
        """Whether one of two operands is a number of the formula."""
        return len(self.among) > 1 and any(not (n.ndim or n.inputs) for n in self.among)


_TIES: ContextVar[tuple[str, list[Choice]]] = ContextVar("ties")


@contextlib.contextmanager
def ties(convention: str) -> Iterator[list[Choice]]:
    """Set the subgradient at ties for rules inside: a convention of `TIES`.

    Yields a list to which every choice that uses it is added.
    """
    if convention not in (*TIES, SHARED, BOUNDED):
        raise ValueError(f"no convention {convention!r}; one of {', '.join(TIES)}")
    choices: list[Choice] = []
    with setting(_TIES, (convention, choices)):
        yield choices


def convention(*among: Node, axis: int | None = None, indexed: bool = False) -> str:
    """The convention by which a choice breaks its ties; the choice is noted."""
    name, choices = _TIES.get(("first", []))
    choices.append(Choice(among, axis, indexed))
    if name == BOUNDED:
        return "first" if choices[-1].bounded else "even"
    return "even" if name == SHARED and not indexed else name


def spread(dy: Node, x: Node, axis: Any, keepdims: bool) -> Node:
    """A reduction's cotangent, copied along the axes that were reduced."""
    if not keepdims:
        dy = reshape(dy, reduced(x.shape, axis, keepdims=True))
    return broadcast_to(dy, x.shape)


def _largest(x: Array, axis: int, keepdims: bool) -> Array:
    """The largest element; -inf if there is none, for the softmax of an empty row."""
    if x.shape[axis]:
        return as_array(np.max(x, axis=axis, keepdims=keepdims))
    shape = [n for i, n in enumerate(x.shape) if keepdims or i != axis]
    if keepdims:
        shape[axis] = 1
    lowest = (
        -np.inf
        if x.dtype.kind in FLOATING
        else False
        if x.dtype == bool
        else np.iinfo(x.dtype).min
    )
    return np.full(shape, lowest, x.dtype)


def _share(a: Array, b: Array, *, at_tie: float) -> Array:
    """The weight of a: 1 where it is larger, 0 where b is, `at_tie` if equal.

    The 0 is negative where one of them is infinite: see `weighed`.
    """
    share = np.where(a == b, at_tie, np.where(a > b, 1.0, _nothing(a, b)))
    known = (a == a) & (b == b)  # false for nan, in any dtype
    weight: Array = np.where(known, share, np.nan).astype(a.dtype)
    return weight


def _nothing(a: Array, b: Array) -> Array:
    """The weight of the operand not chosen: 0, and -0 if either is infinite."""
    infinite = (np.abs(a) == np.inf) | (np.abs(b) == np.inf)
    return np.where(infinite, -0.0, 0.0)


def _pick(x: Array, *, axis: int, convention: str) -> Array:
    """Weights of the maxima along an axis, adding up to 1; nan where one is nan."""
    largest = _largest(x, axis=axis, keepdims=True)
    top = x == largest
    if convention == "even":
        weight: Array = top / np.sum(top, axis=axis, keepdims=True)
    else:
        ordered = top if convention == "first" else np.flip(top, axis)
        weight = ordered & (np.cumsum(ordered, axis=axis) == 1)
        weight = weight if convention == "first" else np.flip(weight, axis)
    weight = np.where(weight == 0, _nothing(x, largest), weight)
    known: Array = np.where(largest == largest, weight, np.nan)
    return known.astype(x.dtype)


def _sign(a: Array, *, at_tie: float) -> Array:
    sign: Array = np.where(a == 0, at_tie, np.sign(a))
    return sign.astype(a.dtype)


share = primitive("share", _share, no_gradient, shape=broadcast)
pick = primitive("pick", _pick, no_gradient, shape=lambda x, **_: x)
_sign_primitive = primitive("sign", _sign, no_gradient, shape=broadcast)
_argmax = primitive(
    "argmax",
    lambda x, axis: np.argmax(x, axis=axis),
    no_gradient,
    dtype=lambda x, axis: np.intp,
)
SELECTIONS = ("share", "pick", "sign")
_WEIGHT = {"first": (1.0, 0.0), "last": (0.0, 1.0), "even": (0.5, 0.5)}


def _times_weight(dy: Array, weight: Array) -> Array:
    lost = (weight == 0) & (np.copysign(1.0, weight.astype(float)) > 0)
    product: Array = np.where(lost, 0, dy * weight)
    return product


#: A product, as all analyses of the graph have it.
_WEIGHED = Primitive(
    "multiply",
    _times_weight,
    lambda dy, y, a, weight: (weighed(dy, weight), dy * a),
    shape=broadcast,
)


def weighed(dy: Node, weight: Node) -> Node:
    """A cotangent times the weight of a choice; 0 where that is 0, however large dy.

    An operand that was not chosen has no effect: sqrt(maximum(x, 0)) is constant below
    0, though the slope of the root is infinite there. Beside an infinite value nothing
    is certain, and zero times an infinity is nan.
    """
    return Node(_WEIGHED, (dy, weight))


def _maximum_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    a, b = ran(a, b, chosen=y)
    to_a, to_b = _WEIGHT[convention(a, b)]
    return (
        weighed(dy, share(a, b, at_tie=to_a)),
        weighed(dy, share(b, a, at_tie=to_b)),
    )


def _abs_rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
    (a,), one_sided = ran(a), {"first": 1.0, "last": -1.0, "even": 0.0}
    return (dy * _sign_primitive(a, at_tie=one_sided[convention(a)]),)


def _max_rule(dy: Node, y: Node, x: Node, *, axis: int, keepdims: bool) -> tuple[Node]:
    copied, (x,) = spread(dy, x, axis, keepdims), ran(x)
    return (weighed(copied, pick(x, axis=axis, convention=convention(x, axis=axis))),)


maximum = public(
    primitive("maximum", np.maximum, broadcasting(_maximum_rule), shape=broadcast)
)
abs = public(primitive("abs", np.abs, _abs_rule, shape=broadcast))
_max = primitive("max", _largest, _max_rule, shape=reduced)


@public
def minimum(a: Any, b: Any) -> Node:
    """The smaller of two elements."""
    a, b = as_nodes((a, b))
    return -maximum(-a, -b)


@public
def clip(x: Any, min: Any = None, max: Any = None) -> Node:
    """x where it lies between two bounds, the nearer bound elsewhere."""
    (x,) = as_nodes((x,))
    x = x if min is None else maximum(x, min)
    return x if max is None else minimum(x, max)


@public
def sign(x: Any, *, at_tie: float = 0.0) -> Node:
    """The sign: -1, 0 or 1; `at_tie` in place of 0, if given."""
    return _sign_primitive(x, at_tie=at_tie)


@public
def max(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Largest element along an axis, several, or all; -inf of no elements."""
    (x,) = as_nodes((x,))
    if isinstance(axis, int) and x.ndim:
        return _max(x, axis=axes_of(axis, x.ndim)[0], keepdims=keepdims)
    merged, left, kept = together(x, axis)
    y = _max(merged, axis=merged.ndim - 1, keepdims=False)
    return reshape(y, kept if keepdims else left)


@public
def min(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Smallest element along an axis, several, or all; inf of no elements."""
    (x,) = as_nodes((x,))
    return -max(-x, axis, keepdims=keepdims)


@public
def argmax(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Node:
    """Index of the largest element along an axis, or of all; the first at a tie."""
    (x,) = as_nodes((x,))
    merged, _, kept = together(x, axis)
    if axis is not None and x.ndim:
        y = _argmax(x, axis=axes_of(axis, x.ndim)[0])
    else:
        y = _argmax(merged, axis=merged.ndim - 1)
    return reshape(y, kept) if keepdims else y


@public
def argmin(x: Any, axis: int | None = None, *, keepdims: bool = False) -> Node:
    """Index of the smallest element along an axis, or of all; the first at a tie."""
    (x,) = as_nodes((x,))
    return argmax(-x, axis, keepdims=keepdims)
