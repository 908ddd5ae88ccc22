"""What an honest but careless algorithm may lose: rules for the verdict `imprecise`.

The judge's limit takes roundings to be random: 16 + sqrt(n) / 2 radii for a sum of n
terms. Equal terms round the same way every time, and a sequential sum of them loses up
to n roundings of the terms' magnitudes: it is correct code, and it has lost digits
(Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2).
Strassen's product is accurate against the largest product of the matrices, not of its
row and column (section 23.2.2); E[x^2] - E[x]^2 against E[x^2] (section 1.9); exp2 by
exp(x ln 2) against x; sigmoid by tanh against 1.

Attention in blocks computes a product twice, in two orders (harness/judging/draws.py).

A lost term is no imprecision. A sum's excuse is therefore not that worst case, but what
is seen: the very terms are added up one by one in the precision in question, and twice
the largest loss of any partial sum, relative to its terms' magnitudes, is allowed.
Terms that do not round alike lose hardly more that way than the limit allows anyway,
and excuse nothing. Where n u > 1 there is no bound (section 3.1), and no excuse: a
gradient of 16,384 terms accumulated in bfloat16 is wrong. Strassen's excuse ends at a
quarter of the average term. A term that a sequential sum of these terms loses itself
(a million tenths in float32) is `imprecise` too: no judge could tell them apart.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging.excuses.centring import copied_axes
from harness.judging.precisions import PRECISIONS
from harness.judging.rounding.analysis import ERROR
from harness.judging.rounding.errors import At, Error, Table, terms
from impls.graph import Node

Array = NDArray[Any]

LOST = 0.25  # of the average term: half of it would be the rounding of a lost one
SEEN = 2.0  # a blocked sum may lose more than the sequential one, but hardly twice that
MOST = 1 << 24  # multiplications of a matrix product that are done one by one: a second


def _sum(at: At) -> Error:
    node, error = at.node, ERROR["sum"](at)
    count, dtype = terms(node), at.arithmetic.accumulator
    if count <= 1 or count * at.arithmetic.sums > 1:
        return error
    axes = _summed(node)
    kept = [i for i in range(node.inputs[0].ndim) if i not in axes]
    value = node.inputs[0].value.transpose(*axes, *kept)
    rows = value.reshape(count, *value.shape[len(axes) :])
    ends = (_loss(rows, dtype), _loss(rows[::-1], dtype))
    total = np.sum(np.abs(rows), axis=0).astype(np.float64)
    worst = SEEN * np.maximum(*ends) * total
    return np.asarray(error + worst.reshape(node.shape) / at.u)


def _loss(rows: Array, dtype: str) -> Error:
    """The largest relative loss of the partial sums along the first axis.

    Of the rounded terms: that they are rounded, or underflow, is no loss of the sum.
    """
    with np.errstate(all="ignore"):
        narrow, rows = _accumulated(rows, dtype), PRECISIONS[dtype].round(rows)
        gap = np.abs(narrow - np.cumsum(rows, axis=0))
        loss = gap / np.cumsum(np.abs(rows), axis=0)
    largest: Error = np.where(np.isfinite(loss), loss, 0.0).max(axis=0)
    return largest.astype(np.float64)


def _summed(node: Node) -> tuple[int, ...]:
    """The axes that a `sum` or `sum_to` adds up, in order."""
    ndim = node.inputs[0].ndim
    if "shape" in node.attributes:
        shape, have = node.attributes["shape"], node.inputs[0].shape
        new = ndim - len(shape)
        copied = (i + new for i, n in enumerate(shape) if n == 1 and have[i + new] != 1)
        return (*range(new), *copied)
    axis = node.attributes["axis"]
    axes = range(ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(i % ndim for i in axes))


def _accumulated(rows: Array, dtype: str) -> Array:
    """Partial sums along the first axis, each rounded; NumPy lacks bfloat16."""
    if dtype != "bfloat16":
        return np.add.accumulate(rows.astype(dtype), axis=0)
    round_ = PRECISIONS[dtype].round
    sums = [round_(rows[0])]
    for row in rows[1:]:
        sums.append(round_(sums[-1] + round_(row)))
    return np.stack(sums)


def _matmul(at: At) -> Error:
    """Products added up one by one."""
    error, count = ERROR["matmul"](at), at.a.shape[-1]
    dtype = at.arithmetic.accumulator
    much = at.v.size * count > MOST
    if much or dtype == "bfloat16" or count * at.arithmetic.sums > 1:
        return error
    a, b = (source.value for source in at.node.inputs)
    loss = np.zeros(at.node.shape)
    narrow, wide, total = np.zeros(1, dtype), np.zeros(1, a.dtype), np.zeros(1)
    with np.errstate(all="ignore"):
        for k in range(count):
            term = a[..., :, k, None] * b[..., k, None, :]
            narrow = narrow + term.astype(dtype)
            wide, total = wide + term, total + np.abs(term)
            gap = np.abs(narrow - wide) / total
            loss = np.fmax(loss, np.where(np.isfinite(gap), gap, 0.0))
    return np.asarray(error + SEEN * loss * (at.a @ at.b) / at.u)


def _fast_matmul(at: At) -> Error:
    """Strassen's normwise bound as well, without its constant."""
    error, count = _matmul(at), at.a.shape[-1]
    if not error.size or not count or count * at.arithmetic.sums > 1:
        return error
    largest = [s.max(axis=(-2, -1), keepdims=True) for s in (at.a, at.b)]
    normwise = count * count * at.arithmetic.sums * largest[0] * largest[1]
    worst = np.minimum(normwise, LOST * (at.a @ at.b) / count)
    return error + np.where(np.isfinite(worst), worst, 0.0) / at.u


def _squared(at: At) -> Error:
    """The square of a difference as a^2 - 2 a b + b^2: a variance in one pass.

    Only where that leaves a quarter of the digits: what leaves less is no algorithm.
    """
    name = at.node.primitive.name if at.node.primitive else ""
    error, source = ERROR[name](at), at.node.inputs[0]
    twice = name == "square" or at.node.inputs[0] is at.node.inputs[1]
    if not twice or source.primitive is None or source.primitive.name != "subtract":
        return error
    a, b = (np.square(s.value.astype(np.float64)) for s in source.inputs)
    worst = 2 * at.roundoff * (a + b)
    axes = [copied_axes(s, source) for s in source.inputs]
    rest = np.mean(np.square(at.a), axis=max(axes, key=len) or None, keepdims=True)
    enough = worst <= at.roundoff**0.25 * rest  # false for nan
    return np.asarray(error + np.where(enough, worst, 0.0) / at.u)


def _power(at: At) -> Error:
    """exp2 as exp(x ln 2), or exp as exp2(x / ln 2): one rounding of the argument."""
    assert at.node.primitive is not None
    error = ERROR[at.node.primitive.name](at)
    extra = at.v * np.expm1(math.log(4) * at.roundoff * at.a) / at.u
    return np.asarray(error + np.where(np.isfinite(extra), extra, 0.0))


def _sigmoid(at: At) -> Error:
    """1/2 + tanh(x / 2) / 2: two roundings of numbers near 1."""
    return np.asarray(ERROR["sigmoid"](at) + 2 * at.roundoff / at.u)


#: For the spread, which wants each operation's own loss and no more.
SEQUENTIAL: Table = {"sum": _sum, "sum_to": _sum, "matmul": _matmul}
CARELESS: Table = {
    **SEQUENTIAL,
    "matmul": _fast_matmul,
    "square": _squared,
    "multiply": _squared,
    "exp": _power,
    "exp2": _power,
    "sigmoid": _sigmoid,
}
