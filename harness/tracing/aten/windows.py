"""Convolution, pooling and antialiased resampling: windows gathered, then reduced."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradwatch.harness.tracing.aten.moves import moved
from gradwatch.harness.tracing.rules.windows import (
    Index,
    convolved,
    gathered,
    listed,
    positions,
    windows,
)
from gradwatch.harness.tracing.values import constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]
#: For each of the last axes of a tensor the places of its windows; see `windows`.
Windows = Sequence[Index]


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
    ends, apart = [(p, p) for p in padding], None
    if transposed:
        each = zip(weight.shape[2:], dilation, padding, more, strict=True)
        ends = [(d * (k - 1) - p, d * (k - 1) - p + m) for k, d, p, m in each]
        stride, apart = [1] * n, stride

        def turned(w: torch.Tensor) -> torch.Tensor:
            w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:]).transpose(1, 2)
            return w.flatten(0, 1).flip(tuple(range(2, w.ndim - 1)))

        weight = moved(turned, weight)
    y = convolved(x, weight, stride, ends, dilation, apart, groups)
    return y if bias is None else y + graph.reshape(bias, (bias.size,) + (1,) * n)


def _strided(
    n: int,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
    counted: bool = False,
) -> Windows:
    """Windows at equal distances; where `counted`, the padding counts as places."""
    kernel, padding = listed(kernel, n), listed(padding, n)
    how = kernel, listed(stride, n) if stride else kernel, listed(dilation, n)
    sizes, ends = [], []
    for size, pad, k, step, gap in zip(x.shape[-n:], padding, *how, strict=True):
        free = size + 2 * pad - gap * (k - 1) - 1
        more = -free % step if ceil else 0
        if more and free + more >= size + pad:  # starts in the padding
            more = 0
        held = pad if counted else 0
        sizes.append(size + 2 * held)
        ends.append((pad - held, pad - held + more))
    return windows(sizes, *how[:2], ends, how[2])


def _adaptive(x: Node, counts: Sequence[int]) -> Windows:
    """So many windows, as PyTorch cuts an axis."""
    found = []
    for n, count in zip(x.shape[-len(counts) :], counts, strict=True):
        cuts = np.arange(count + 1) * n
        start, stop = cuts[:-1, None] // count, -(-cuts[1:, None] // count)
        place = start + np.arange((stop - start).max(initial=0))
        found.append(np.where(place < stop, place, -1))
    return found


def _average(
    x: Node, places: Windows, counted: Windows, divisor: int | None = None
) -> Node:
    """Sums of windows over how many places those have that count."""
    counts = [(place >= 0).sum(axis=1) for place in counted]
    count = constant(divisor or functools.reduce(np.multiply.outer, counts))
    return graph.sum(gathered(x, places, 0.0), axis=-1) / count


def _averages(
    n: int,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Node:
    given = n, x, kernel, stride, padding, 1, ceil
    places, counted = _strided(*given), _strided(*given, count_include_pad)
    return _average(x, places, counted, divisor)


def _largest(x: Node, places: Windows) -> tuple[Node, Any]:
    """The largest of each window, and its flat position in the channel."""
    picked, n = gathered(x, places, -np.inf), len(places)
    best = np.argmax(picked.value, axis=-1)[..., None]
    place = positions(x.shape[-n:], places).reshape(picked.shape[-n - 1 :])
    at = np.take_along_axis(np.broadcast_to(place, picked.shape), best, -1)[..., 0]
    return graph.max(picked, axis=picked.ndim - 1), torch.from_numpy(at)


def _adaptive_average(x: Node, counts: Sequence[int]) -> Node:
    places = _adaptive(x, counts)
    return _average(x, places, places)


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
    each = zip(x.shape[-2:], sizes, scales or (None, None), strict=True)
    rows, columns = (_triangles(n, out, align, scale) for n, out, scale in each)
    return graph.matrix_transpose(rows) @ x @ columns


ON_FLOATS: dict[str, Rule] = {
    "convolution": _convolution,
    "_upsample_bilinear2d_aa": _antialiased,
    **{f"avg_pool{n}d": functools.partial(_averages, n) for n in (2, 3)},
    **{
        f"max_pool{n}d_with_indices": lambda x, *how, n=n: _largest(
            x, _strided(n, x, *how)
        )
        for n in (2, 3)
    },
    **{f"_adaptive_avg_pool{n}d": _adaptive_average for n in (2, 3)},
    **{
        f"adaptive_max_pool{n}d": lambda x, counts: _largest(x, _adaptive(x, counts))
        for n in (2, 3)
    },
}
