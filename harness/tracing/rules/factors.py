"""Factorisations: Cholesky, LU, QR, eigenvalues of a symmetric matrix, singular values.

Values come from plain algorithms in whatever type is wide; eigenvectors of LAPACK's are
refined in it (Ogita and Aishima, Iterative refinement for symmetric eigenvalue
decomposition, JJIAM 35, 2018). Singular values and vectors are eigenvalues and vectors
of [[0, A], [A^T, 0]]. Of a symmetric matrix one triangle is read, and the gradient is
the symmetric one.

Gradients: Giles, An extended collection of matrix derivative results, 2008 (Cholesky,
eigenvalues); Walter and Lehmann, Algorithmic differentiation of linear algebra
functions, 2010 (LU, QR); Seeger and others, Auto-differentiating linear algebra, 2017.

Errors: a computed factorisation is that of A + E, where |E| is n u |L| |L^T| (Cholesky)
or n u |L| |U| (LU) at most, and about u times the norm of a column (QR) or of A
(eigenvalues); Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., theorems
10.3, 9.3 and 19.4. How far E moves the factors is the first-order picture, where E is
small against what it is divided by; else no bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.analysis import ERROR
from gradwatch.harness.tracing.rules.systems import (
    bounded,
    inverse,
    inverse_size,
    pivoted,
    transposed,
    triangle,
)
from gradwatch.harness.tracing.values import constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, primitive
from gradwatch.impls.graph.extended import product

Array = NDArray[Any]
#: Which of an eigenvector's signs are turned: those with this bit in their number.
TURNED: ContextVar[int | None] = ContextVar("turned", default=None)
#: Bits of a vector's number, so that any two of the first seven are turned apart; and
#: the share of the largest element that rounding in float64 changes at most.
BITS, ALIKE = 3, 1e-6
FREE = "returns vectors that another algorithm may choose in another way"
SIGNS = "returns vectors whose signs are free, and the result has them"
_lower, _upper = graph.tril, graph.triu


def signs_show(results: Callable[[], Iterable[Node]]) -> bool:
    """Whether results change with an algorithm's choice of its vectors' signs."""
    right = [np.asarray(y.value, float) for y in results()]
    for bit in range(BITS):
        token = TURNED.set(bit)
        try:
            turned = [np.asarray(y.value, float) for y in results()]
        finally:
            TURNED.reset(token)
        for here, there in zip(right, turned, strict=True):
            off = np.abs(there - here).max(initial=0.0)
            if off > ALIKE * np.abs(here).max(initial=0.0):
                return True
    return False


def _t(a: Array) -> Array:
    return np.swapaxes(a, -1, -2)


def _symmetric(x: Node) -> Node:
    return (x + transposed(x)) * 0.5


def _mirrored(a: Array) -> Array:
    """The matrix whose lower triangle is that of a."""
    return np.tril(a) + _t(np.tril(a, -1))


# Cholesky -----------------------------------------------------------------------------


def _cholesky(a: Array, halves: bool = True) -> Array:
    """L of L L^T, column by column; nan where there is none."""
    y = np.zeros_like(a)
    for k in range(a.shape[-1]):
        row = y[..., k, :k, None]
        rest = a[..., k:, k] - (y[..., k:, :k] @ row)[..., 0]
        y[..., k:, k] = rest / np.sqrt(rest[..., :1])
    return y


def _cholesky_rule(dy: Node, y: Node, a: Node, halves: bool = True) -> tuple[Node]:
    """Where `halves`, of an element and its mirror image each has half."""
    n = y.shape[-1]
    halved = constant(np.tril(np.ones((n, n))) - np.eye(n) / 2)
    inverted = inverse(y)
    inner = halved * (transposed(y) @ _lower(dy))
    gradient = transposed(inverted) @ inner @ inverted
    return (_symmetric(gradient) if halves else gradient,)


def _cholesky_error(at: Any) -> Array:
    inverted = inverse_size(at.node.value)
    error = _mirrored(at.e[0]) + at.v.shape[-1] * (at.v @ _t(at.v))
    inner = inverted @ error @ _t(inverted)
    return bounded(at.v @ np.tril(inner) + at.v + at.tiny * (at.v > 0), at.u * inner)


cholesky = primitive("factors.cholesky", _cholesky, _cholesky_rule)
ERROR["factors.cholesky"] = _cholesky_error


# LU -----------------------------------------------------------------------------------


def _lu_rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
    low, up = triangle(y, upper=False, unit=True), _upper(y)
    inner = _lower(transposed(low) @ _lower(dy, k=-1), k=-1)
    inner = inner + _upper(_upper(dy) @ transposed(up))
    return (transposed(inverse(low)) @ inner @ transposed(inverse(up)),)


def _lu_error(at: Any) -> Array:
    y, n = at.node.value, at.v.shape[-1]
    low, up = np.tril(y, -1) + np.eye(n), np.triu(y)
    error = at.e[0] + n * (np.abs(low) @ np.abs(up)).astype(np.float64)
    inner = inverse_size(low) @ error @ inverse_size(up)
    made = np.abs(low) @ np.tril(inner, -1) + np.triu(inner) @ np.abs(up)
    made = made.astype(np.float64) + at.v + at.tiny
    # Another row may have been the pivot, where an element of L is nearly 1.
    other = np.abs(np.tril(at.v, -1) - 1) <= at.u * made
    other &= np.tril(np.ones((n, n), bool), -1)
    return bounded(
        np.where(other.any(axis=(-2, -1), keepdims=True), np.inf, made), at.u * inner
    )


packed_lu = primitive("factors.lu", lambda a: pivoted(a, False)[2], _lu_rule)
ERROR["factors.lu"] = _lu_error


def lu(a: Node, pivot: bool = True) -> tuple[Array, Array, Node, Node]:
    """The order of rows, and the row of each step, as LAPACK finds them; L and U."""
    rows, columns = a.shape[-2:]
    k = min(rows, columns)
    order, pivots, _ = pivoted(np.asarray(a.value, np.float64), pivot)
    a = graph.take_along_axis(a, order[..., None], axis=-2)
    square = packed_lu(a[..., :k, :k])
    low, up = triangle(square, upper=False, unit=True), _upper(square)
    if rows > k:
        low = graph.concat([low, a[..., k:, :] @ inverse(up)], axis=-2)
    if columns > k:
        up = graph.concat([up, inverse(low) @ a[..., k:]], axis=-1)
    return order, pivots, low, up


def lu_in_one(a: Node, pivot: bool = True) -> tuple[Array, Array, Node]:
    """Likewise, L below the diagonal of U."""
    order, pivots, low, up = lu(a, pivot)
    none = [(0, 0)] * (a.ndim - 2)
    right, below = up.shape[-1] - up.shape[-2], low.shape[-2] - up.shape[-2]
    lower = graph.pad(_lower(low, k=-1), [*none, (0, 0), (0, right)])
    return order, pivots, lower + graph.pad(up, [*none, (0, below), (0, 0)])


# QR -----------------------------------------------------------------------------------


def _orthonormal(a: Array) -> Array:
    """Q of a matrix with no more columns than rows: Householder, and LAPACK's signs."""
    r, columns, turns = a.copy(), a.shape[-1], []
    for k in range(columns):
        v = r[..., k:, k].copy()
        norm = np.sqrt(np.sum(v * v, axis=-1))
        v[..., 0] += np.where(v[..., 0] < 0, -norm, norm)
        v *= np.any(v[..., 1:] != 0, axis=-1)[..., None]
        size = np.sum(v * v, axis=-1)
        turns.append((v[..., None], np.where(size == 0, 1, size / 2)[..., None, None]))
        r[..., k:, :] -= _reflection(turns[-1], r[..., k:, :])
    q = np.broadcast_to(np.eye(a.shape[-2], columns, dtype=a.dtype), a.shape).copy()
    for k in reversed(range(columns)):
        q[..., k:, :] -= _reflection(turns[k], q[..., k:, :])
    return q


def _reflection(turn: tuple[Array, Array], a: Array) -> Array:
    """What a Householder reflection takes from a matrix."""
    v, half = turn
    return np.asarray(v / half @ (_t(v) @ a))


def _orthonormal_rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
    m = -(transposed(dy) @ y)
    both = _lower(m) + transposed(_lower(m, k=-1))
    return ((dy + y @ both) @ transposed(inverse(_upper(transposed(y) @ a))),)


def _orthonormal_error(at: Any) -> Array:
    y, a = at.node.value, at.node.inputs[0].value
    error = at.e[0] + np.sqrt(np.sum(at.a**2, axis=-2, keepdims=True))
    move = error @ inverse_size(np.triu(_t(y) @ a))
    return bounded(move + 2 * at.v @ (_t(at.v) @ move) + 1, at.u * move)


orthonormal = primitive("factors.orthonormal", _orthonormal, _orthonormal_rule)
ERROR["factors.orthonormal"] = _orthonormal_error


def qr(a: Node) -> tuple[Node, Node]:
    """Q of as many columns as A or as few as it has rows, and R."""
    q = orthonormal(a[..., : min(a.shape[-2:])])
    return q, _upper(transposed(q) @ a)


def pseudoinverse(a: Node) -> Node:
    """Of a matrix of full rank."""
    if a.shape[-2] < a.shape[-1]:
        return transposed(pseudoinverse(transposed(a)))
    q, r = qr(a)
    return inverse(r) @ transposed(q)


def reflected(a: Node, tau: Node, whole: bool = False) -> Node:
    """The columns that Householder's vectors below a diagonal stand for, or all."""
    vectors = _lower(a, k=-1) + constant(np.eye(a.shape[-2], a.shape[-1]))
    q = constant(np.eye(a.shape[-2]))
    for i in reversed(range(tau.shape[-1])):
        v = vectors[..., i : i + 1]
        q = q - tau[..., i, None, None] * v @ (transposed(v) @ q)
    return q if whole else q[..., : a.shape[-1]]


# Eigenvalues and singular values ------------------------------------------------------


def _eigen(a: Array, like: Array | None = None) -> tuple[Array, Array]:
    """Eigenvalues in ascending order, and vectors, with the signs of `like`."""
    a = _mirrored(a)
    fine = np.asarray(np.isfinite(a).all(axis=(-2, -1), keepdims=True))
    w, v = np.linalg.eigh(np.where(fine, a, 0).astype(np.float64))
    w, v = w.astype(a.dtype), v.astype(a.dtype)
    eye = np.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(3):  # each doubles the digits, of which LAPACK has those of float64
        r, s = eye - product(_t(v), v), product(_t(v), product(a, v))
        diagonal = np.diagonal(s, axis1=-2, axis2=-1)
        w = diagonal / (1 - np.diagonal(r, axis1=-2, axis2=-1))
        gap = w[..., None, :] - w[..., :, None]
        size = np.abs(s).max(axis=(-2, -1), initial=0.0, keepdims=True)
        off = np.abs(s - s * eye).max(axis=(-2, -1), initial=0.0, keepdims=True)
        close = np.abs(gap) <= 2 * (off + size * np.abs(r).max(initial=0.0))
        part = (s + w[..., None, :] * r) / np.where(close, 1, gap)
        v = v + product(v, np.where(close, r / 2, part))
    if like is not None:
        v = v * np.where(np.sum(v * like, axis=-2, keepdims=True) < 0, -1, 1)
    return np.where(fine[..., 0], w, np.nan), np.where(fine, v, np.nan)


def vectors(a: Node) -> Node:
    """All eigenvectors; their signs stay, whatever moves the matrix a little."""
    like, bit = _eigen(a.value)[1].astype(np.float64), TURNED.get()
    if bit is not None:
        like = like * (1 - 2 * (np.arange(1, a.shape[-1] + 1) >> bit & 1))
    return eigenvectors(a, like=like)


def _values_rule(dy: Node, y: Node, a: Node) -> tuple[Node]:
    v = vectors(a)
    return ((v * graph.reshape(dy, (*dy.shape[:-1], 1, dy.shape[-1]))) @ transposed(v),)


def _vectors_rule(dy: Node, y: Node, a: Node, like: Array) -> tuple[Node]:
    w = eigenvalues(a)
    *stack, n = w.shape
    gap = graph.reshape(w, (*stack, 1, n)) - graph.reshape(w, (*stack, n, 1))
    same = constant(gap.value == 0)
    inner = transposed(y) @ dy * (1.0 - same) / (gap + same)
    return (_symmetric(y @ inner @ transposed(y)),)


def _carried(at: Any) -> tuple[Array, Array, Array]:
    """Eigenvalues, vectors, and the error of the matrix seen from the vectors."""
    w, v = _eigen(at.node.inputs[0].value)
    size = np.abs(v).astype(np.float64)
    return w.astype(np.float64), size, _t(size) @ _mirrored(at.e[0]) @ size


def _values_error(at: Any) -> Array:
    inner = _carried(at)[2]
    return np.diagonal(inner, axis1=-2, axis2=-1) + at.v


def _vectors_error(at: Any) -> Array:
    """No bound for vectors of values that rounding alone may make equal.

    There PyTorch divides by the difference; a function may still have a gradient.
    """
    w, size, inner = _carried(at)
    gap = np.abs(w[..., None, :] - w[..., :, None])
    gap = np.where(np.eye(gap.shape[-1], dtype=bool), np.inf, gap)
    norm = np.abs(w).max(axis=-1, initial=0.0)[..., None, None]
    known = at.u * np.max((inner + norm) / gap, axis=-2, initial=0.0, keepdims=True)
    return np.where(known < 0.5, size @ (inner / gap) + 1, np.inf)


def _stable_error(at: Any) -> Array:
    norm = np.sqrt(np.sum(at.v**2, axis=(-2, -1), keepdims=True))
    return at.e[0] + norm * (at.v == at.v)


def _returned_error(at: Any) -> Array:
    a = at.node.inputs[1].value.astype(np.float64)
    known = a.size and np.isfinite(a).all()
    condition = np.linalg.cond(a)[..., None, None] if known else np.inf
    return np.asarray(at.e[0] + condition * (_stable_error(at) - at.e[0]))


eigenvalues = primitive("factors.eigenvalues", lambda a: _eigen(a)[0], _values_rule)
eigenvectors = primitive(
    "factors.eigenvectors", lambda a, like: _eigen(a, like)[1], _vectors_rule
)
#: The matrix that is factorised in place of the given one.
perturbed = primitive("factors.perturbed", lambda a: a.copy(), lambda dy, y, a: (dy,))
#: The gradient by the matrix in `a`, of which an inverse loses the condition's digits.
returned: Any = primitive(
    *("factors.returned", lambda dy, a: dy.copy()),
    lambda ddy, y, dy, a: (returned(ddy, a), None),
)
#: The matrix, whose gradient is `returned`.
to_invert = primitive(
    "factors.to_invert", lambda a: a.copy(), lambda dy, y, a: (returned(dy, a),)
)
ERROR["factors.eigenvalues"] = _values_error
ERROR["factors.eigenvectors"] = _vectors_error
ERROR["factors.perturbed"] = _stable_error
ERROR["factors.returned"] = _returned_error
ERROR["factors.to_invert"] = lambda at: at.e[0]


def eigh(a: Node, upper: bool = False, vectors_too: bool = True) -> tuple[Node, Any]:
    """Eigenvalues and vectors of the symmetric matrix that has this triangle."""
    a = perturbed(transposed(a) if upper else a)
    return eigenvalues(a), vectors(a) if vectors_too else None


def svd(a: Node, vectors_too: bool = True) -> tuple[Any, Node, Any]:
    """U, singular values, V^T; of vectors as many as there are values."""
    rows, columns = a.shape[-2:]
    a = perturbed(a)
    if rows < columns:
        u, w, vh = svd(transposed(a), vectors_too)
        return (transposed(vh), w, transposed(u)) if vectors_too else (u, w, vh)
    if rows > columns:
        q, r = qr(a)
        u, w, vh = svd(r, vectors_too)
        return q @ u if vectors_too else u, w, vh
    corner = graph.pad(a, [*[(0, 0)] * (a.ndim - 2), (0, rows), (rows, 0)])
    both = corner + transposed(corner)
    w = graph.flip(eigenvalues(both), axis=-1)[..., :rows]
    if not vectors_too:
        return None, w, None
    v = graph.flip(vectors(both), axis=-1)[..., :rows]
    v = v * constant(np.sqrt(np.longdouble(2)))
    return v[..., :rows, :], w, transposed(v[..., rows:, :])
