"""Convolution's and pooling's windows: which flat positions each of them sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Index = NDArray[np.intp]


def listed(value: Any, count: int) -> list[int]:
    """One number for each spatial axis; PyTorch lets one stand for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def windows(
    shape: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    padding_after: Sequence[int] | None = None,
    stretch: Sequence[int] | None = None,
) -> Index:
    """Flat positions in an array (batch, channels, *space), -1 for what is padding.

    Args:
        shape: Of the array.
        kernel, stride, padding, dilation: One number for each spatial axis; a negative
            padding crops.
        padding_after: The padding at the end of the axes, where it is another one.
        stretch: Elements lie that far apart, as a transposed convolution sees them.

    Returns:
        An array (batch, channels, *output space, *kernel).
    """
    place = np.arange(math.prod(shape), dtype=np.intp).reshape(shape)
    if stretch:
        place = _stretched(place, stretch)
    for axis, ends in enumerate(
        zip(padding, padding_after or padding, strict=True), start=2
    ):
        place = _padded(place, axis, *ends)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    spatial = tuple(range(2, place.ndim))
    seen = np.lib.stride_tricks.sliding_window_view(place, span, axis=spatial)
    every = (slice(None), slice(None))
    steps = tuple(slice(None, None, s) for s in (*stride, *dilation))
    return seen[every + steps]


def _stretched(place: Index, stretch: Sequence[int]) -> Index:
    space = tuple(
        max((n - 1) * s + 1, 0) for n, s in zip(place.shape[2:], stretch, strict=True)
    )
    wide = np.full(place.shape[:2] + space, -1, np.intp)
    steps: tuple[Any, ...] = (..., *(slice(None, None, s) for s in stretch))
    wide[steps] = place
    return wide


def _padded(place: Index, axis: int, before: int, after: int) -> Index:
    stop = place.shape[axis] - max(-after, 0)
    place = np.take(place, range(max(-before, 0), stop), axis=axis)
    width = [(0, 0)] * place.ndim
    width[axis] = (max(before, 0), max(after, 0))
    return np.pad(place, width, constant_values=-1)


def grouped_product(x: Node, weight: Node, place: Index, groups: int) -> Node:
    """A convolution: the windows of x at those places, times the weight's channels."""
    n = weight.ndim - 2
    batch, channels, made = x.shape[0], x.shape[1] // groups, weight.shape[0]
    out, taps = place.shape[2 : 2 + n], math.prod(weight.shape[2:])
    place = place.reshape(batch, groups, channels, math.prod(out), taps)
    place = (
        place.transpose(0, 1, 3, 2, 4).reshape(batch, groups, -1, channels * taps)
        if place.size
        else np.zeros((batch, groups, math.prod(out), channels * taps), np.intp)
    )
    rows = graph.gather(x, index=place)
    columns = graph.reshape(weight, (groups, made // groups, channels * taps))
    y = graph.matmul(rows, graph.permute_dims(columns, (0, 2, 1)))
    return graph.reshape(graph.permute_dims(y, (0, 1, 3, 2)), (batch, made, *out))
