"""ATen's factorisations, and the operators that solve with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradwatch.harness.tracing.rules import matrices
from gradwatch.harness.tracing.rules.matrices import (
    determinant,
    exponential,
    inverse,
    inverted,
    solved,
    transposed,
    triangle,
    turned,
)
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import as_exact, as_float, constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def no_info(a: Any) -> torch.Tensor:
    """The zeros by which LAPACK's `info` reports success for each matrix."""
    return torch.zeros(a.shape[:-2], dtype=torch.int32)


def _solve_ex(a: Any, b: Any, *, left: bool = True, **_: Any) -> tuple[Any, ...]:
    if b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1]):  # vectors
        return solved(a, b[..., None])[..., 0], None, None, no_info(a)
    return solved(a, b, left), None, None, no_info(a)


def _from_factor(factor: Node, upper: bool) -> Node:
    """The matrix of a Cholesky factor."""
    low = turned(triangle(factor, upper), upper)
    return low @ transposed(low)


def _slogdet(a: Node) -> tuple[Any, ...]:
    det = determinant(a)
    return graph.sign(det), graph.log(graph.abs(det)), None, None


def _cholesky(a: Node, upper: bool = False) -> Node:
    return turned(matrices.cholesky(turned(a, upper)), upper)


def _lu_factor_ex(a: Node, *, pivot: bool = True, **__: Any) -> tuple[Any, ...]:
    _, pivots, packed = matrices.lu_in_one(a, pivot)
    return packed, torch.from_numpy(pivots.astype(np.int32) + 1), no_info(a)


def _linalg_lu(a: Node, *, pivot: bool = True) -> tuple[Node, Node, Node]:
    order, _, low, up = matrices.lu(a, pivot)
    return transposed(constant(np.eye(a.shape[-2])[order])), low, up


def _unpacked(packed: Any, pivots: Any, *_: Any) -> tuple[Node, Node, Node]:
    """P, L and U of a packed factorisation."""
    packed = as_float(packed)
    empty = torch.zeros(packed.shape, dtype=torch.float64)
    p = torch.lu_unpack(empty, as_exact(pivots).int(), unpack_data=False)[0]
    k = min(packed.shape[-2:])
    lower = graph.tril(packed[..., :k], k=-1) + constant(np.eye(packed.shape[-2], k))
    return as_float(p), lower, graph.triu(packed[..., :k, :])


def _lu_solve(
    packed: Any, pivots: Any, b: Any, *, left: bool = True, adjoint: bool = False
) -> Node:
    p, lower, upper = _unpacked(packed, pivots)
    made = turned(inverse(upper) @ inverse(lower) @ transposed(p), adjoint)
    return made @ as_float(b) if left else as_float(b) @ made


def _qr(a: Node, mode: str = "reduced") -> tuple[Node, Node]:
    q, r = matrices.qr(a)
    return (a[..., :0] if mode == "r" else q), r


def _lstsq(a: Node, b: Node, *_: Any, driver: str | None = None) -> tuple[Any, ...]:
    """The solution of full rank, of least squares or least norm, and its residuals."""
    x, (rows, columns) = matrices.pseudoinverse(a) @ b, a.shape[-2:]
    off = x[..., :0, 0]
    if rows > columns and driver not in (None, "gelsy"):  # it returns none
        off = graph.sum((a @ x - b) ** 2.0, axis=-2)
    rank = torch.full(a.shape[:-2], min(rows, columns))
    return x, off, rank, torch.zeros(0, dtype=torch.float64)


def _ormqr(
    a: Node, tau: Node, other: Node, left: bool = True, transpose: bool = False
) -> Node:
    q = turned(matrices.reflected(a, tau, whole=True), transpose)
    return q @ other if left else other @ q


def _svd(
    a: Node, full_matrices: bool = False, compute_uv: bool = True, **_: Any
) -> tuple[Any, ...]:
    if full_matrices and compute_uv and a.shape[-1] != a.shape[-2]:
        raise Untraceable("aten.linalg_svd", matrices.FREE, "factorisation")
    return matrices.svd(a, compute_uv)


def _pinv(a: Node, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Node:
    """The pseudoinverse; singular values within the tolerance count as 0."""
    if hermitian:
        why = "reads one triangle, and has a gradient by both"
        raise Untraceable("aten.linalg_pinv", why, "factorisation")
    a = matrices.to_invert(matrices.perturbed(a))
    _, held, _ = matrices.svd(a, False)
    widths = [0.0 if t is None else as_float(t).value[..., None] for t in (atol, rtol)]
    if rtol is None and not np.any(widths[0]):
        widths[1] = max(a.shape[-2:]) * np.finfo(np.float64).eps
    kept = held.value > np.maximum(widths[0], widths[1] * held.value[..., :1])
    if kept.all():
        return matrices.pseudoinverse(a)
    u, w, vh = matrices.svd(a)
    rank = int(kept.sum(axis=-1).max())
    kept, w = kept[..., :rank], w[..., :rank]
    weights = graph.where(kept, 1.0 / graph.where(kept, w, 1.0), 0.0)
    v, ut = transposed(vh[..., :rank, :]), transposed(u[..., :rank])
    return v * weights[..., None, :] @ ut


ON_FLOATS: dict[str, Rule] = {
    "linalg_inv_ex": lambda a, **_: (inverted(a), no_info(a)),
    "_linalg_solve_ex": _solve_ex,
    "_linalg_det": lambda a: (determinant(a), None, None),
    "_linalg_slogdet": _slogdet,
    "linalg_solve_triangular": lambda a, b, *, upper, left=True, unitriangular=False: (
        solved(triangle(a, upper, unitriangular), b, left)
    ),
    "triangular_solve": lambda b, a, upper=True, transpose=False, unitriangular=False: (
        (solved(turned(triangle(a, upper, unitriangular), transpose), b), a)
    ),
    "linalg_matrix_exp": exponential,
    "cholesky_solve": lambda b, u, upper=False: solved(_from_factor(u, upper), b),
    "cholesky_inverse": lambda u, upper=False: inverse(_from_factor(u, upper)),
    "cholesky": _cholesky,
    "linalg_cholesky_ex": lambda a, *, upper=False, **_: (
        _cholesky(a, upper),
        no_info(a),
    ),
    "linalg_lu_factor_ex": _lu_factor_ex,
    "linalg_lu": _linalg_lu,
    "linalg_qr": _qr,
    "linalg_lstsq": _lstsq,
    "linalg_pinv": _pinv,
    "linalg_householder_product": matrices.reflected,
    "ormqr": _ormqr,
    "_linalg_eigh": lambda a, uplo="L", compute_v=True: matrices.eigh(
        a, uplo == "U", compute_v
    ),
    "_linalg_svd": _svd,
}
ON_VALUES: dict[str, Rule] = {"linalg_lu_solve": _lu_solve, "lu_unpack": _unpacked}
