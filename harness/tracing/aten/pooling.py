"""Pooling: windows gathered, then reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradwatch.harness.tracing.aten.reductions import total
from gradwatch.harness.tracing.rules.windows import listed, windows
from gradwatch.harness.tracing.values import constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def _after(
    size: Sequence[int],
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
) -> list[int]:
    """Padding at the end of each axis: more than at the start where `ceil` asks."""
    after = list(padding)
    for i, n in enumerate(size if ceil else ()):
        reach = dilation[i] * (kernel[i] - 1) + 1
        padded = n + 2 * padding[i]
        count = -(-(padded - reach) // stride[i]) + 1
        if (count - 1) * stride[i] >= n + padding[i]:  # starts in the padding
            count -= 1
        after[i] += max((count - 1) * stride[i] + reach - padded, 0)
    return after


def _windows(
    x: Node,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
) -> Any:
    """The positions of each window of the last axes of a node."""
    n = len(kernel)
    lead, space = x.shape[:-n], x.shape[-n:]
    after = _after(space, kernel, stride, padding, dilation, ceil)
    shape = (1, math.prod(lead), *space)
    flat = windows(shape, kernel, stride, padding, dilation, after)
    return flat.reshape(*lead, *flat.shape[2 : 2 + n], math.prod(kernel))


def _average(n: int) -> Rule:
    def rule(
        x: Node,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Node:
        kernel, padding = listed(kernel, n), listed(padding, n)
        stride = listed(stride, n) if stride else kernel
        index = _windows(x, kernel, stride, padding, [1] * n, ceil_mode)
        sums = total(graph.gather(x, index=index), -1)
        if divisor_override:
            return sums / float(divisor_override)
        counts = np.ones(())  # elements of each window, its padding counted or not
        for i, out in enumerate(sums.shape[-n:]):
            ends = padding[i] * count_include_pad
            start = np.arange(out) * stride[i] - padding[i]
            stop = np.minimum(start + kernel[i], x.shape[i - n] + ends)
            counts = np.multiply.outer(counts, stop - np.maximum(start, -ends))
        return sums / constant(counts)

    return rule


def _largest(n: int) -> Rule:
    """The largest of each window, and its flat position in the channel."""

    def rule(
        x: Node,
        kernel: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> tuple[Node, Any]:
        kernel = listed(kernel, n)
        steps = listed(stride, n) if stride else kernel
        around = listed(padding, n), listed(dilation, n)
        return _largest_of(x, _windows(x, kernel, steps, *around, ceil_mode), n)

    return rule


def _largest_of(x: Node, index: Any, n: int) -> tuple[Node, Any]:
    least = constant(-np.inf)
    picked = graph.gather(x, least, index=np.where(index < 0, x.size, index))
    best = np.argmax(picked.value, axis=-1)[..., None]
    place = np.take_along_axis(index, best, -1)[..., 0] % max(
        math.prod(x.shape[-n:]), 1
    )
    return graph.max(picked, axis=picked.ndim - 1), torch.from_numpy(place)


def _adaptive_largest(x: Node, sizes: Sequence[int]) -> tuple[Node, Any]:
    """The largest of ranges, which differ in length: filled up with padding."""
    space = x.shape[-len(sizes) :]
    flat = np.zeros((1,) * (2 * len(sizes)), np.intp)
    for axis, (n, out) in enumerate(zip(space, sizes, strict=True)):
        ranges = _ranges(n, out)
        longest = max(map(len, ranges))
        table = np.array([[*r, *[-1] * (longest - len(r))] for r in ranges])
        shape = [1] * (2 * len(sizes))
        shape[axis], shape[len(sizes) + axis] = out, longest
        table = table.reshape(shape)
        flat = np.where((flat < 0) | (table < 0), -1, flat * n + table)
    lead, inner = x.shape[: -len(sizes)], math.prod(space)
    flat = flat.reshape(*sizes, -1)
    first = np.arange(math.prod(lead)).reshape(*lead, *(1,) * flat.ndim) * inner
    index = np.where(flat < 0, -1, first + flat)
    return _largest_of(x, index, len(sizes))


def _adaptive(x: Node, sizes: Sequence[int]) -> Node:
    """Averages of ranges: a product with a matrix of zeros and ones for each axis."""
    for axis, out in zip(range(-len(sizes), 0), sizes, strict=True):
        ranges = _ranges(n := x.shape[axis], out)
        inside = np.array([np.isin(np.arange(n), r) for r in ranges], float)
        inside = inside.reshape(out, n).T
        sums = graph.matmul(graph.moveaxis(x, axis, -1), constant(inside))
        x = graph.moveaxis(sums / constant([len(r) for r in ranges]), -1, axis)
    return x


def _ranges(n: int, out: int) -> list[range]:
    """The places of each average, as PyTorch cuts an axis."""
    return [range(i * n // out, -(-(i + 1) * n // out)) for i in range(out)]


ON_FLOATS: dict[str, Rule] = {
    "avg_pool2d": _average(2),
    "avg_pool3d": _average(3),
    "max_pool2d_with_indices": _largest(2),
    "max_pool3d_with_indices": _largest(3),
    "adaptive_max_pool2d": _adaptive_largest,
    "adaptive_max_pool3d": _adaptive_largest,
    "_adaptive_avg_pool2d": _adaptive,
    "_adaptive_avg_pool3d": _adaptive,
}
