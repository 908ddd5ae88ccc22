"""Linear systems: inverse, determinant, and what follows from them.

Values come from Gaussian elimination with partial pivoting, in whatever type is wide.
The forward error of a computed inverse Y of A is within n u |Y| |A| |Y| (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., section 14.1: right or left
residual bounds, where |A| stands for |L| |U|, which is larger if rows and columns are
of several decades), and an error E of A moves it by |Y| E |Y|; a determinant moves by
|det| sum |Y^T| E.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.analysis import ERROR
from gradwatch.harness.tracing.aten.moves import moved
from gradwatch.harness.tracing.values import as_exact, as_float, constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, primitive

Array = NDArray[Any]
Rule = Callable[..., Any]
_TAYLOR = 18  # terms: .5**19 / 19! is below 2**-75


def _eliminated(a: Array, b: Array) -> tuple[Array, Array]:
    """Solutions x of a x = b for stacks of matrices, and the determinants of a."""
    a, b = a.copy(), np.broadcast_to(b, a.shape[:-1] + b.shape[-1:]).copy()
    stack: tuple[Any, ...] = tuple(np.indices(a.shape[:-2], sparse=True))
    n = a.shape[-1]
    det = np.ones(a.shape[:-2], a.dtype)
    for k in range(n):
        pivot = k + np.argmax(np.abs(a[..., k:, k]), axis=-1)
        for m in (a, b):
            row = m[(*stack, pivot)].copy()
            m[(*stack, pivot)] = m[..., k, :]
            m[..., k, :] = row
        det = det * a[..., k, k] * np.where(pivot == k, 1, -1)
        factor = a[..., :, k] / a[..., k, k][..., None]
        factor[..., k] = 0
        a -= factor[..., None] * a[..., k, :][..., None, :]
        b -= factor[..., None] * b[..., k, :][..., None, :]
    diagonal = np.diagonal(a, axis1=-2, axis2=-1)
    return b / diagonal[..., None], det


def _complex(a: Array) -> Array:
    """x + iy of a matrix [[x, -y], [y, x]]."""
    n = a.shape[-1] // 2
    return np.asarray(a[..., :n, :n] + 1j * a[..., n:, :n])


def _inverse(a: Array, paired: bool = False) -> Array:
    """Where `paired`, of a complex matrix, written as `_complex` reads it."""
    held = _complex(a) if paired else a
    y = _eliminated(held, np.eye(held.shape[-1], dtype=held.dtype))[0]
    return np.block([[y.real, -y.imag], [y.imag, y.real]]) if paired else y


def _determinant(a: Array) -> Array:
    det = _eliminated(a, np.eye(a.shape[-1], dtype=a.dtype))[1]
    return np.asarray(np.where(np.isnan(det), 0, det))  # a column of zeros is left over


def transposed(x: Node) -> Node:
    """Of each matrix."""
    return graph.matrix_transpose(x)


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
    both = error[..., :n, :n] + error[..., n:, :n]
    return np.block([[both, both], [both, both]])


def _perturbed(at: Any, inverted: Array) -> Array:
    """Error of A and of the elimination, as one error of A."""
    a = at.node.inputs[0].value.astype(np.float64)
    held = _complex(a) if at.node.attributes.get("paired") else a
    p, low, up = (m.abs() for m in torch.linalg.lu(torch.from_numpy(held)))
    own = a.shape[-1] * (p @ low @ up).numpy()
    if held is not a:
        own = np.block([[own, own], [own, own]])
    backward: Array = _mixed(at, at.e[0]) + own
    reach = at.u * (inverted @ backward)
    # Beyond half, the first-order picture fails: the matrix may be singular.
    return np.where(
        reach.max(axis=(-2, -1), initial=0.0)[..., None, None] < 0.5, backward, np.inf
    )


def _inverse_error(at: Any) -> Array:
    size = _mixed(at, at.v)
    error: Array = size @ _perturbed(at, size) @ size + size + at.tiny
    return np.where(np.isnan(error), np.inf, error)


def _determinant_error(at: Any) -> Array:
    inverted = np.abs(_inverse(at.node.inputs[0].value)).astype(np.float64)
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


def _solved(a: Node, b: Node, left: bool = True) -> Node:
    """x with a x = b, or x a = b."""
    return inverse(a) @ b if left else b @ inverse(a)


def is_of_vectors(a: Node, b: Node) -> bool:
    """Whether the right sides b of a system are vectors."""
    return b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])


def _solve_ex(a: Node, b: Node, *, left: bool = True, **_: Any) -> tuple[Any, ...]:
    if not is_of_vectors(a, b):
        return _solved(a, b, left), None, None, no_info(a)
    y = inverse(a) @ graph.expand_dims(b, axis=-1)
    return y[..., 0], None, None, no_info(a)


def no_info(a: Node) -> torch.Tensor:
    """Of each matrix that nothing went wrong."""
    return torch.zeros(a.shape[:-2], dtype=torch.int32)


def triangle(a: Node, upper: bool, unit: bool) -> Node:
    """One triangle of each matrix; where `unit`, its diagonal is 1."""
    kept = moved(
        (torch.triu if upper else torch.tril), a, 1 if unit and upper else -unit
    )
    return kept + constant(np.eye(a.shape[-1])) if unit else kept


def _solve_triangular(
    a: Node, b: Node, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    return _solved(triangle(a, upper, unitriangular), b, left)


def _triangular_solve(
    b: Node, a: Node, upper: bool = True, transpose: bool = False, unit: bool = False
) -> tuple[Node, Node]:
    held = triangle(a, upper, unit)
    return _solved(transposed(held) if transpose else held, b), a


def _from_factor(factor: Node, upper: bool) -> Node:
    """The matrix that a Cholesky factor is of."""
    held = triangle(factor, upper, False)
    other = transposed(held)
    return other @ held if upper else held @ other


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


def _slogdet(a: Node) -> tuple[Any, ...]:
    det = determinant(a)
    return graph.sign(det), graph.log(graph.abs(det)), None, None


def _unpacked(packed: Any, pivots: Any) -> tuple[Node, Node, Node]:
    """P, L and U of a packed factorisation."""
    packed = as_float(packed)
    empty = torch.zeros(packed.shape, dtype=torch.float64)
    p = torch.lu_unpack(empty, as_exact(pivots).int(), unpack_data=False)[0]
    rows, columns = packed.shape[-2:]
    k = min(rows, columns)
    lower = moved(lambda m: torch.tril(m[..., :, :k], -1), packed)
    lower = lower + constant(np.eye(rows, k))
    return as_float(p), lower, moved(lambda m: torch.triu(m[..., :k, :]), packed)


def _lu_solve(
    packed: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False
) -> Node:
    p, lower, upper = _unpacked(packed, pivots)
    inverted = inverse(upper) @ inverse(lower) @ transposed(p)
    inverted = transposed(inverted) if adjoint else inverted
    return inverted @ as_float(b) if left else as_float(b) @ inverted


ON_FLOATS: dict[str, Rule] = {
    "linalg_inv_ex": lambda a, **_: (inverse(a), no_info(a)),
    "_linalg_solve_ex": _solve_ex,
    "_linalg_det": lambda a: (determinant(a), None, None),
    "_linalg_slogdet": _slogdet,
    "linalg_solve_triangular": _solve_triangular,
    "triangular_solve": _triangular_solve,
    "linalg_matrix_exp": exponential,
    "cholesky_solve": lambda b, u, upper=False: _solved(_from_factor(u, upper), b),
    "cholesky_inverse": lambda u, upper=False: inverse(_from_factor(u, upper)),
}
ON_VALUES: dict[str, Rule] = {
    "linalg_lu_solve": _lu_solve,
    "lu_unpack": lambda packed, pivots, *_: _unpacked(packed, pivots),
}
