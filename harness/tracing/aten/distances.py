"""Distances of pairs of vectors, and sampling of volumes at given places."""

from __future__ import annotations

import itertools
import math
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


# grid_sampler_3d: PyTorch decomposes the one of planes, but not that of volumes.


def _unnormalised(x: Node, size: int, align: bool) -> Node:
    """From -1 .. 1 to positions of elements."""
    if align:
        return (x + 1.0) * ((size - 1) / 2)
    return ((x + 1.0) * float(size) - 1.0) / 2.0


def _reflected(x: Node, size: int, align: bool) -> Node:
    low, span = (0.0, size - 1.0) if align else (-0.5, float(size))
    if not span:
        return x * 0.0
    away = graph.abs(x - low)
    flips = np.floor(away.value / span)
    rest = away - constant(flips * span)
    odd = graph.variable(flips % 2 == 1)
    return graph.where(odd, span - rest, rest) + low


def _position(x: Node, size: int, padding: int, align: bool) -> Node:
    """Where in an axis; padding 0 is zeros, 1 the border, 2 reflection."""
    x = _unnormalised(x, size, align)
    x = _reflected(x, size, align) if padding == 2 else x
    return graph.clip(x, 0.0, size - 1.0) if padding else x


def _grid_sampler_3d(
    x: Node, grid: Node, interpolation: int, padding: int, align: bool
) -> Node:
    sizes = x.shape[2:]
    places = [  # the grid names the last axis first
        _position(grid[..., 2 - i], n, padding, align) for i, n in enumerate(sizes)
    ]
    if interpolation == 1:
        return _picked(x, [np.rint(p.value) for p in places])
    below = [np.floor(p.value) for p in places]
    parts = []
    for corner in itertools.product((0, 1), repeat=3):
        weight = constant(1.0)
        for place, low, side in zip(places, below, corner, strict=True):
            beyond = place - constant(low)
            weight = weight * (beyond if side else 1.0 - beyond)
        values = _picked(x, [low + s for low, s in zip(below, corner, strict=True)])
        parts.append(values * graph.expand_dims(weight, axis=1))
    return graph.sum(graph.stack(parts), axis=0)


def _picked(x: Node, at: Sequence[Any]) -> Node:
    """Elements of all channels at whole positions (batch, *places); 0 outside."""
    batch, channels, *sizes = x.shape
    inside = np.all(
        [(p >= 0) & (p < n) for p, n in zip(at, sizes, strict=True)], axis=0
    )
    flat = np.zeros(inside.shape, np.intp)
    for p, n in zip(at, sizes, strict=True):
        flat = flat * n + np.where(inside, p, 0).astype(np.intp)
    plane = np.arange(batch * channels).reshape(batch, channels, 1, 1, 1)
    index = plane * math.prod(sizes) + flat[:, None]
    return graph.gather(x, index=np.where(inside[:, None], index, -1))


ON_FLOATS: dict[str, Rule] = {
    "_cdist_forward": _cdist,
    "_pdist_forward": _pdist,
    "_upsample_bilinear2d_aa": _antialiased,
    "grid_sampler_3d": _grid_sampler_3d,
}
