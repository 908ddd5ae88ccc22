"""Products of matrices, and the convolution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradwatch.harness.tracing.aten.moves import moved
from gradwatch.harness.tracing.aten.reductions import total
from gradwatch.harness.tracing.aten.windows import grouped_product, listed, windows
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import as_exact, as_float
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
    kernel = weight.shape[2:]
    if transposed:
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        before = [r - p for r, p in zip(reach, padding, strict=True)]
        after = [b + o for b, o in zip(before, more, strict=True)]
        weight = _transposed_weight(weight, groups)
        place = windows(x.shape, kernel, [1] * n, before, dilation, after, stride)
    else:
        place = windows(x.shape, kernel, stride, padding, dilation)
    y = grouped_product(x, weight, place, groups)
    return y if bias is None else y + graph.reshape(bias, (bias.size,) + (1,) * n)


ON_FLOATS: dict[str, Rule] = {
    "mm": graph.matmul,
    "bmm": graph.matmul,
    "_sparse_addmm": lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    "addmm": lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
    "addmv": lambda c, a, b, beta=1, alpha=1: _plus(c, a @ b, beta, alpha),
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
