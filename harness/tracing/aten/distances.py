"""Distances of pairs of vectors, and antialiased resampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradwatch.harness.tracing.aten.moves import moved
from gradwatch.harness.tracing.aten.reductions import norm
from gradwatch.harness.tracing.values import constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def _cdist(a: Node, b: Node, p: float, mode: Any = None) -> Node:
    left = moved(lambda t: t.unsqueeze(-2), a)
    return norm(left - moved(lambda t: t.unsqueeze(-3), b), p, -1)


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
}
