"""Matrices: inverse, determinant, exponential; Cholesky, LU, QR, eigenvalues, svd.

Values come from plain algorithms in the wide type: Gaussian elimination with
partial pivoting; eigenvectors of LAPACK's are refined in it (Ogita and Aishima,
Iterative refinement for symmetric eigenvalue decomposition, JJIAM 35, 2018). Singular
values and vectors are eigenvalues and vectors of [[0, A], [A^T, 0]]. Of a symmetric
matrix one triangle is read, and the gradient is the symmetric one.

Gradients: Giles, An extended collection of matrix derivative results, 2008 (Cholesky,
eigenvalues); Walter and Lehmann, Algorithmic differentiation of linear algebra
functions, 2010 (LU, QR); Seeger and others, Auto-differentiating linear algebra, 2017.

Errors (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 14.1,
theorems 10.3, 9.3 and 19.4): that of a computed inverse Y of A is within n u |Y| |A|
|Y|, where |A| stands for |L| |U|, which is larger if rows and columns are of several
decades, and an error E of A moves it by |Y| E |Y|; a determinant moves by
|det| sum |Y^T| E. A computed factorisation is that of A + E, where |E| is n u |L| |L^T|
(Cholesky) or n u |L| |U| (LU) at most, and about u times the norm of a column (QR) or
of A (eigenvalues). The move of the factors by E is taken to first order, where E is
small against its divisor; else there is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.tracing.values import Complex, both, constant, ruled
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.engine import setting
from gradwatch.impls.graph.extended import product

Array = NDArray[Any]
_TAYLOR = 18  # terms: .5**19 / 19! is below 2**-75
transposed = graph.matrix_transpose
#: Eigenvectors whose number, from 1, has this bit get the other sign.
TURNED: ContextVar[int | None] = ContextVar("turned", default=None)
#: How many bits are tried: any two of the first seven vectors differ in one. And the
#: largest share of the largest element that rounding in float64 changes.
BITS, ALIKE = 3, 1e-6
FREE = "returns vectors that another algorithm may choose in another way"
SIGNS = "returns vectors whose signs are free, and the result has them"
_lower, _upper = graph.tril, graph.triu


# Linear systems -----------------------------------------------------------------------


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
    """Whether the number of row exchanges is odd, as for a determinant's sign."""
    return (pivots != np.arange(pivots.shape[-1])).sum(axis=-1) % 2 == 1


def _inverse(a: Array) -> Array:
    n = a.shape[-1]
    eye = np.broadcast_to(np.eye(n, dtype=a.dtype), a.shape)
    packed = pivoted(np.concatenate((a, eye), axis=-1))[2]
    up, y = packed[..., :n], packed[..., n:]
    for k in reversed(range(n)):
        y[..., k, :] -= (up[..., k, None, k + 1 :] @ y[..., k + 1 :, :])[..., 0, :]
        y[..., k, :] /= up[..., k, k, None]
    return y


def inverse_size(a: Array) -> Array:
    """|a^-1| in float64; not finite where a is singular."""
    with np.errstate(all="ignore"):
        return np.abs(_inverse(a.astype(np.float64)))


def _determinant(a: Array) -> Array:
    _, pivots, packed = pivoted(a)
    det = np.prod(np.diagonal(packed, axis1=-2, axis2=-1), axis=-1)
    det = np.where(odd(pivots), -det, det)
    return np.asarray(np.where(np.isnan(det), 0, det))  # nan: a column of zeros is left


def bounded(error: Array, reach: Array) -> Array:
    """The error of matrices whose backward error moves them by less than a half.

    Beyond half, no first-order bound holds: the matrix may be singular.
    """
    known = reach.max(axis=(-2, -1), initial=0.0) < 0.5
    return np.where(known[..., None, None] & ~np.isnan(error), error, np.inf)


def _perturbed(at: Any, inverted: Array) -> Array:
    """The errors of A and of its elimination, as one error of A."""
    order, _, packed = pivoted(at.node.inputs[0].value.astype(np.float64))
    n = packed.shape[-1]
    low = np.abs(np.tril(packed, -1)) + np.eye(n)
    back = np.argsort(order, axis=-1)[..., None]
    own = np.take_along_axis(low @ np.abs(np.triu(packed)), back, axis=-2)
    backward: Array = at.e[0] + n * own
    return bounded(backward, at.u * (inverted @ backward))


def _inverse_error(at: Any) -> Array:
    error: Array = at.v @ _perturbed(at, at.v) @ at.v + at.v + at.tiny
    return np.where(np.isnan(error), np.inf, error)


def _determinant_error(at: Any) -> Array:
    inverted = inverse_size(at.node.inputs[0].value)
    moves = np.swapaxes(inverted, -1, -2) * _perturbed(at, inverted)
    error: Array = at.v * moves.sum(axis=(-2, -1)) + at.v + at.tiny
    return np.where(np.isnan(error), np.inf, error)


inverse = ruled(
    *("special.inverse", _inverse),
    lambda dy, y, a: (-(transposed(y) @ dy @ transposed(y)),),
    _inverse_error,
)
determinant = ruled(
    *("special.determinant", _determinant),
    lambda dy, y, a: (
        graph.reshape(dy * y, (*y.shape, 1, 1)) * transposed(inverse(a)),
    ),
    _determinant_error,
)
# Other schemes for a polynomial (Paterson and Stockmeyer's, Bader's) add powers of the
# whole matrix: each element is off by roundings of the largest.
_polynomial = ruled(
    *("special.polynomial", np.array, lambda dy, y, a: (dy,)),
    lambda at: at.e[0] + at.v.sum(-1, keepdims=True).max(-2, keepdims=True, initial=0),
)


def inverted(a: Any) -> Any:
    """The inverse; that of complex x + iy is the real one of [[x, -y], [y, x]]."""
    if isinstance(a, Node):
        return inverse(a)
    n, rows = a.shape[-1], ([a.re, -a.im], [a.im, a.re])
    whole = graph.concat([graph.concat(row, axis=-1) for row in rows], axis=-2)
    y = inverse(whole)[..., :n]
    return Complex(y[..., :n, :], y[..., n:, :])


def turned(a: Any, over: bool = True) -> Any:
    """The transpose, of complex matrices, too; without `over`, the matrix itself."""
    return both(transposed, a) if over else a


def solved(a: Any, b: Any, left: bool = True) -> Any:
    """x with a x = b, or x a = b."""
    return inverted(a) @ b if left else b @ inverted(a)


def triangle(a: Any, upper: bool, unit: bool = False) -> Any:
    """One triangle of each matrix; with `unit`, its diagonal is 1."""
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


# Factorisations -----------------------------------------------------------------------


def signs_show(results: Callable[[], Iterable[Node]]) -> bool:
    """Whether results change with an algorithm's choice of its vectors' signs."""
    right = [np.asarray(y.value, float) for y in results()]
    for bit in range(BITS):
        with setting(TURNED, bit):
            turned = [np.asarray(y.value, float) for y in results()]
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
    """The gradient by A; with `halves`, mirrored elements have half of it each."""
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


cholesky = ruled("factors.cholesky", _cholesky, _cholesky_rule, _cholesky_error)


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


packed_lu = ruled("factors.lu", lambda a: pivoted(a, False)[2], _lu_rule, _lu_error)


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
    """The same LU factorisation, with L below the diagonal of U."""
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
    """The matrix that a Householder reflection subtracts from a matrix."""
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


orthonormal = ruled(
    "factors.orthonormal", _orthonormal, _orthonormal_rule, _orthonormal_error
)


def qr(a: Node) -> tuple[Node, Node]:
    """Q of as many columns as A or as few as it has rows, and R."""
    q = orthonormal(a[..., : min(a.shape[-2:])])
    return q, _upper(transposed(q) @ a)


def pseudoinverse(a: Node) -> Node:
    """The pseudoinverse of a matrix of full rank."""
    if a.shape[-2] < a.shape[-1]:
        return transposed(pseudoinverse(transposed(a)))
    q, r = qr(a)
    return inverse(r) @ transposed(q)


def reflected(a: Node, tau: Node, whole: bool = False) -> Node:
    """Columns of the matrix Q that Householder vectors below a diagonal define."""
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
    for _ in range(3):  # each step doubles the digits, of which LAPACK's are float64's
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
    """All eigenvectors; their signs stay under small changes of the matrix."""
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
    """Eigenvalues, vectors, and the error of the matrix in the basis of the vectors."""
    w, v = _eigen(at.node.inputs[0].value)
    size = np.abs(v).astype(np.float64)
    return w.astype(np.float64), size, _t(size) @ _mirrored(at.e[0]) @ size


def _vectors_error(at: Any) -> Array:
    """E of eigenvectors, infinite if rounding may make two eigenvalues equal.

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


eigenvalues = ruled(
    *("factors.eigenvalues", lambda a: _eigen(a)[0], _values_rule),
    lambda at: np.diagonal(_carried(at)[2], axis1=-2, axis2=-1) + at.v,
)
eigenvectors = ruled(
    *("factors.eigenvectors", lambda a, like: _eigen(a, like)[1]),
    *(_vectors_rule, _vectors_error),
)
#: The matrix that is factorised in place of the given one.
perturbed = ruled("factors.perturbed", np.copy, lambda dy, y, a: (dy,), _stable_error)
#: The gradient by the matrix in `a`, of which an inverse loses the condition's digits.
returned: Any = ruled(
    *("factors.returned", lambda dy, a: dy.copy()),
    *(lambda ddy, y, dy, a: (returned(ddy, a), None), _returned_error),
)
#: The matrix, whose gradient is `returned`.
to_invert = ruled(
    *("factors.to_invert", np.copy, lambda dy, y, a: (returned(dy, a),)),
    lambda at: at.e[0],
)


def eigh(a: Node, upper: bool = False, vectors_too: bool = True) -> tuple[Node, Any]:
    """Eigenvalues and vectors of the symmetric matrix that has this triangle."""
    a = perturbed(turned(a, upper))
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
