"""Linear systems: elimination, inverse, determinant, exponential, triangles.

Values come from Gaussian elimination with partial pivoting, in whatever type is wide.
The forward error of a computed inverse Y of A is within n u |Y| |A| |Y| (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., section 14.1: right or left
residual bounds, where |A| stands for |L| |U|, which is larger if rows and columns are
of several decades), and an error E of A moves it by |Y| E |Y|; a determinant moves by
|det| sum |Y^T| E.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.analysis import ERROR
from gradwatch.harness.tracing.values import Complex, both, constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, primitive

Array = NDArray[Any]
_TAYLOR = 18  # terms: .5**19 / 19! is below 2**-75
transposed = graph.matrix_transpose


def pivoted(a: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """The order of rows, the row that each step took, and L and U in one, of stacks."""
    a, (rows, columns) = a.copy(), a.shape[-2:]
    stack: tuple[Any, ...] = tuple(np.indices(a.shape[:-2], sparse=True))
    order = np.broadcast_to(np.arange(rows), a.shape[:-1]).copy()
    pivots = np.zeros((*a.shape[:-2], min(rows, columns)), np.intp)
    for k in range(pivots.shape[-1]):
        pivots[..., k] = k
        if pivot:
            pivots[..., k] += np.argmax(np.abs(a[..., k:, k]), axis=-1)
            for m in (a, order):
                row = m[(*stack, pivots[..., k])].copy()
                m[(*stack, pivots[..., k])] = m[(*stack, k)]
                m[(*stack, k)] = row
        a[..., k + 1 :, k] /= a[..., k, k, None]
        a[..., k + 1 :, k + 1 :] -= a[..., k + 1 :, k, None] * a[..., None, k, k + 1 :]
    return order, pivots, a


def odd(pivots: Array) -> Array:
    """Whether so many rows were exchanged that a determinant's sign is turned."""
    return (pivots != np.arange(pivots.shape[-1])).sum(axis=-1) % 2 == 1


def _complex(a: Array) -> Array:
    """x + iy of a matrix [[x, -y], [y, x]]."""
    n = a.shape[-1] // 2
    return np.asarray(a[..., :n, :n] + 1j * a[..., n:, :n])


def _inverse(a: Array, paired: bool = False) -> Array:
    """Where `paired`, of a complex matrix, written as `_complex` reads it."""
    held = _complex(a) if paired else a
    n = held.shape[-1]
    eye = np.broadcast_to(np.eye(n, dtype=held.dtype), held.shape)
    packed = pivoted(np.concatenate((held, eye), axis=-1))[2]
    up, y = packed[..., :n], packed[..., n:]
    for k in reversed(range(n)):
        y[..., k, :] -= (up[..., k, None, k + 1 :] @ y[..., k + 1 :, :])[..., 0, :]
        y[..., k, :] /= up[..., k, k, None]
    return np.block([[y.real, -y.imag], [y.imag, y.real]]) if paired else y


def inverse_size(a: Array) -> Array:
    """|a^-1| in float64; not finite where a is singular."""
    with np.errstate(all="ignore"):
        return np.abs(_inverse(a.astype(np.float64)))


def _determinant(a: Array) -> Array:
    _, pivots, packed = pivoted(a)
    det = np.prod(np.diagonal(packed, axis1=-2, axis2=-1), axis=-1)
    det = np.where(odd(pivots), -det, det)
    return np.asarray(np.where(np.isnan(det), 0, det))  # a column of zeros is left over


def _inverse_rule(dy: Node, y: Node, a: Node, paired: bool = False) -> tuple[Node]:
    return (-(transposed(y) @ dy @ transposed(y)),)


def _determinant_rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
    weight = graph.reshape(dy * y, (*y.shape, 1, 1))
    return (weight * transposed(inverse(a)),)


def _mixed(at: Any, error: Array) -> Array:
    """Each part of a complex matrix has the errors of both."""
    if not at.node.attributes.get("paired"):
        return error
    n = error.shape[-1] // 2
    return np.tile(error[..., :n, :n] + error[..., n:, :n], (2, 2))


def bounded(error: Array, reach: Array) -> Array:
    """The error of matrices whose backward error moves them by less than a half.

    Beyond half, the first-order picture fails: the matrix may be singular.
    """
    known = reach.max(axis=(-2, -1), initial=0.0) < 0.5
    return np.where(known[..., None, None] & ~np.isnan(error), error, np.inf)


def _perturbed(at: Any, inverted: Array) -> Array:
    """Error of A and of the elimination, as one error of A."""
    a = at.node.inputs[0].value.astype(np.float64)
    held = _complex(a) if at.node.attributes.get("paired") else a
    order, _, packed = pivoted(held)
    low = np.abs(np.tril(packed, -1)) + np.eye(held.shape[-1])
    back = np.argsort(order, axis=-1)[..., None]
    own = np.take_along_axis(low @ np.abs(np.triu(packed)), back, axis=-2)
    own = own if held is a else np.tile(own, (2, 2))
    backward: Array = _mixed(at, at.e[0]) + a.shape[-1] * own
    return bounded(backward, at.u * (inverted @ backward))


def _inverse_error(at: Any) -> Array:
    size = _mixed(at, at.v)
    error: Array = size @ _perturbed(at, size) @ size + size + at.tiny
    return np.where(np.isnan(error), np.inf, error)


def _determinant_error(at: Any) -> Array:
    inverted = inverse_size(at.node.inputs[0].value)
    moves = np.swapaxes(inverted, -1, -2) * _perturbed(at, inverted)
    error: Array = at.v * moves.sum(axis=(-2, -1)) + at.v + at.tiny
    return np.where(np.isnan(error), np.inf, error)


inverse = primitive("special.inverse", _inverse, _inverse_rule)
determinant = primitive("special.determinant", _determinant, _determinant_rule)
# Other schemes for a polynomial (Paterson and Stockmeyer's, Bader's) add powers of the
# whole matrix: each element is off by roundings of the largest.
_polynomial = primitive("special.polynomial", np.array, lambda dy, y, a: (dy,))
ERROR["special.polynomial"] = lambda at: (
    at.e[0] + at.v.sum(-1, keepdims=True).max(-2, keepdims=True, initial=0.0)
)
ERROR["special.inverse"] = _inverse_error
ERROR["special.determinant"] = _determinant_error


def inverted(a: Any) -> Any:
    """The inverse; that of complex x + iy is the real one of [[x, -y], [y, x]]."""
    if isinstance(a, Node):
        return inverse(a)
    n, rows = a.shape[-1], ([a.re, -a.im], [a.im, a.re])
    whole = graph.concat([graph.concat(row, axis=-1) for row in rows], axis=-2)
    y = inverse(whole, paired=True)[..., :n]
    return Complex(y[..., :n, :], y[..., n:, :])


def solved(a: Any, b: Any, left: bool = True) -> Any:
    """x with a x = b, or x a = b."""
    return inverted(a) @ b if left else b @ inverted(a)


def triangle(a: Any, upper: bool, unit: bool = False) -> Any:
    """One triangle of each matrix; where `unit`, its diagonal is 1."""
    keep, k = (graph.triu, 1) if upper else (graph.tril, -1)
    kept = both(lambda part: keep(part, k=k * unit), a)
    return kept + constant(np.eye(a.shape[-1])) if unit else kept


def exponential(a: Node) -> Node:
    """Taylor's polynomial of a small part, squared as often as that was halved."""
    norm = float(np.abs(a.value).sum(axis=-1).max(initial=0.0))
    halvings = max(0, math.frexp(norm)[1] + 1)  # the part's norm is at most 1/2
    part = a * 2.0**-halvings
    y = identity = constant(np.broadcast_to(np.eye(a.shape[-1]), a.shape))
    for k in range(_TAYLOR, 0, -1):
        y = identity + part @ y / float(k)
    y = _polynomial(y)
    for _ in range(halvings):
        y = y @ y
    return y
