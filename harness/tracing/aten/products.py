"""Products of matrices, the convolution, distances, and antialiased resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradwatch.harness.tracing.aten.moves import moved
from gradwatch.harness.tracing.aten.reductions import norm, total
from gradwatch.harness.tracing.rules.windows import (
    grouped_product,
    listed,
    positions,
    windows,
)
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import as_exact, as_float, constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def _plus(c: Node, product: Node, beta: float, alpha: float) -> Node:
    product = product if alpha == 1 else alpha * product
    if beta == 0:
        return graph.broadcast_to(product, np.broadcast_shapes(c.shape, product.shape))
    return (c if beta == 1 else beta * c) + product


def _transposed_weight(weight: Node, groups: int) -> Node:
    """The kernel of the ordinary convolution that a transposed one is: turned round."""

    def turn(w: torch.Tensor) -> torch.Tensor:
        w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
        return w.flatten(0, 1).flip(tuple(range(2, w.ndim - 1)))

    return moved(turn, weight)


def _convolution(
    x: Node,
    weight: Node,
    bias: Node | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Node:
    """Windows gathered, then one matrix product for each group."""
    n = weight.ndim - 2
    stride, padding, dilation, more = (
        listed(v, n) for v in (stride, padding, dilation, output_padding)
    )
    kernel, ends, apart = weight.shape[2:], [(p, p) for p in padding], None
    if transposed:
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        triples = zip(reach, padding, more, strict=True)
        ends = [(r - p, r - p + m) for r, p, m in triples]
        stride, apart = [1] * n, stride
        weight = _transposed_weight(weight, groups)
    place = windows(x.shape[2:], kernel, stride, ends, dilation, apart)
    y = grouped_product(x, weight, positions(x.shape, place), groups)
    return y if bias is None else y + graph.reshape(bias, (bias.size,) + (1,) * n)


# Distances of pairs of vectors, and antialiased resampling ---------------------------


def _cdist(a: Node, b: Node, p: float, mode: Any = None) -> Node:
    return norm(a[..., None, :] - b[..., None, :, :], p, -1)


def _pdist(x: Node, p: float = 2.0) -> Node:
    first, second = np.triu_indices(x.shape[0], 1)
    return norm(x[first] - x[second], p, -1)


def _triangles(size: int, out: int, align: bool, scale: float | None) -> Node:
    """Weights (size, out) of antialiased linear interpolation along an axis."""
    if align:
        step = constant(float(size - 1)) / float(max(out - 1, 1))
    else:
        step = 1.0 / constant(scale) if scale else constant(float(size)) / float(out)
    spread = step if step.value > 1 else constant(1.0)
    centre = step * constant(np.arange(out) + 0.5)
    away = constant(np.arange(size)[:, None] + 0.5) - centre
    weights = graph.maximum(1.0 - graph.abs(away / spread), 0.0)
    return weights / graph.sum(weights, axis=0)


def _antialiased(
    x: Node, sizes: Sequence[int], align: bool, *scales: float | None
) -> Node:
    rows, columns = (
        _triangles(n, out, align, scale)
        for n, out, scale in zip(
            x.shape[-2:], sizes, scales or (None, None), strict=True
        )
    )
    return graph.matrix_transpose(rows) @ x @ columns


ON_FLOATS: dict[str, Rule] = {
    "_cdist_forward": _cdist,
    "_pdist_forward": _pdist,
    "_upsample_bilinear2d_aa": _antialiased,
    "mm": graph.matmul,
    "bmm": graph.matmul,
    **dict.fromkeys(
        ("_sparse_addmm", "addmm", "addmv"),
        lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    ),
    "addbmm": lambda c, a, b, beta=1, alpha=1: _plus(c, total(a @ b, 0), beta, alpha),
    "convolution": _convolution,
}


def _grouped_mm(a: Any, b: Any, offs: Any = None, *_: Any, **__: Any) -> Node:
    """Rows of a, up to each offset, times the matrix of their group."""
    a, b = as_float(a), as_float(b)
    if offs is None:
        return graph.matmul(a, b)
    if (a.ndim, b.ndim) != (2, 3):
        why = "has groups of columns, which have no rule"
        raise Untraceable("aten._grouped_mm", why, "no rule")
    ends = as_exact(offs).tolist()
    pairs = zip([0, *ends], ends, strict=False)
    return graph.concat([a[i:j] @ b[e] for e, (i, j) in enumerate(pairs) if j > i])


ON_VALUES: dict[str, Rule] = {
    "_grouped_mm": _grouped_mm,
}
