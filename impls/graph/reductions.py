"""Sums, means, products and similar reductions along axes."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np

from gradwatch.impls.graph import selection
from gradwatch.impls.graph.choices import condition, isfinite, logical_not, where
from gradwatch.impls.graph.elementwise import exp, log, sqrt
from gradwatch.impls.graph.engine import (
    Node,
    as_nodes,
    axes_of,
    primitive,
    public,
    reduced,
)
from gradwatch.impls.graph.indexing import concat, flip
from gradwatch.impls.graph.moves import (
    astype,
    broadcast_to,
    reshape,
    stop_gradient,
    together,
)


def _cumulative_sum_rule(dy: Node, y: Node, x: Node, *, axis: int) -> tuple[Node]:
    """Each element is a term of all sums from its own on."""
    return (flip(_cumulative_sum(flip(dy, axis), axis=axis), axis),)


_sum = primitive(
    "sum",
    lambda x, axis, keepdims: np.add.reduce(x, axis, x.dtype, keepdims=keepdims),
    lambda dy, y, x, axis, keepdims: (selection.spread(dy, x, axis, keepdims),),
    shape=reduced,
)
_cumulative_sum = primitive(
    "cumulative_sum",
    lambda x, axis: np.cumsum(x, axis=axis, dtype=x.dtype),
    _cumulative_sum_rule,
    shape=lambda x, axis: x,
)


@public
def sum(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Sum over an axis, several, or all; of truth values, their number."""
    (x,) = as_nodes((x,))
    x = astype(x, np.int64) if x.dtype == bool else x
    if axis is not None:
        axis = axes_of(axis, x.ndim) if isinstance(axis, (tuple, list)) else axis
        axes_of(axis, x.ndim)
    return _sum(x, axis=axis, keepdims=keepdims)


@public
def mean(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Sum over the axes divided by the number of terms."""
    (x,) = as_nodes((x,), floating=True)
    return sum(x, axis, keepdims=keepdims) / float(count(x, axis))


def count(x: Node, axis: Any) -> int:
    """The number of elements that a reduction combines."""
    return math.prod(x.shape[i] for i in axes_of(axis, x.ndim))


@public
def var(
    x: Any, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False
) -> Node:
    """Mean square distance from the mean; `correction` reduces the divisor."""
    (x,) = as_nodes((x,), floating=True)
    centred = x - mean(x, axis, keepdims=True)
    squares = sum(centred * centred, axis, keepdims=keepdims)
    divisor = count(x, axis) - correction
    return squares / float(divisor if divisor > 0 else 0)


@public
def std(
    x: Any, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False
) -> Node:
    """Square root of the variance."""
    return sqrt(var(x, axis, correction=correction, keepdims=keepdims))


@public
def prod(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Product over an axis, several, or all.

    It multiplies halves, so that its gradient needs no division and is right at zeros.
    Frameworks divide by each element: a step rounds, also beside a cotangent of ones.
    """
    (x,) = as_nodes((x,))
    y, left, kept = together(x * 1, axis)
    while y.shape[-1] > 1:
        half = y.shape[-1] // 2
        product = y[..., :half] * y[..., half : 2 * half]
        odd = y.shape[-1] % 2
        y = concat((product, y[..., -1:]), axis=-1) if odd else product
    if not y.shape[-1]:
        y = broadcast_to(_ones(y), (*y.shape[:-1], 1))
    return reshape(y, kept if keepdims else left)


def _ones(like: Node) -> Node:
    return Node(None, value=np.ones((), like.dtype))


@public
def cumulative_sum(
    x: Any, axis: int | None = None, *, include_initial: bool = False
) -> Node:
    """Sums of the elements up to each one; `include_initial` puts a zero before."""
    x, axis = _along(x, axis)
    y = _cumulative_sum(x, axis=axis)
    if not include_initial:
        return y
    zero = np.zeros([1 if i == axis else n for i, n in enumerate(x.shape)])
    return concat((zero, y), axis=axis)


@public
def cumulative_prod(x: Any, axis: int | None = None) -> Node:
    """Products of the elements up to each one, in log2(n) steps of doubled reach.

    Frameworks divide sums by each element: a step rounds, also beside a factor of 0.
    """
    x, axis = _along(x, axis)
    x = x * 1
    reach = 1
    before = (slice(None),) * axis
    while reach < x.shape[axis]:
        grown = x[(*before, slice(reach, None))] * x[(*before, slice(None, -reach))]
        x = concat((x[(*before, slice(None, reach))], grown), axis=axis)
        reach *= 2
    return cast(Node, x)


def _along(x: Any, axis: int | None) -> tuple[Node, int]:
    (x,) = as_nodes((x,))
    x = astype(x, np.int64) if x.dtype == bool else x
    if axis is None and x.ndim != 1:
        raise ValueError(f"say along which of {x.ndim} axes: axis=")
    return x, axes_of(axis or 0, x.ndim)[0]


@public
def logsumexp(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """log(sum(exp(x))), computed relative to the largest element."""
    (x,) = as_nodes((x,), floating=True)
    largest = stop_gradient(selection.max(x, axis, keepdims=True))
    shift = where(isfinite(largest), largest, 0.0)
    y = log(sum(exp(x - shift), axis, keepdims=True)) + shift
    return y if keepdims else reshape(y, together(x, axis)[1])


@public
def any(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Whether some element is not 0."""
    return selection.max(condition(as_nodes((x,))[0]), axis, keepdims=keepdims)


@public
def all(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """Whether no element is 0."""
    (x,) = as_nodes((x,))
    return logical_not(any(logical_not(x), axis, keepdims=keepdims))


@public
def count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Node:
    """How many elements are not 0."""
    return sum(condition(as_nodes((x,))[0]), axis, keepdims=keepdims)
