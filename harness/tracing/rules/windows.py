"""Windows, groups and prefixes of elements, by their flat positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.tracing.values import both
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Index = NDArray[np.intp]


def listed(value: Any, count: int) -> list[int]:
    """One number for each spatial axis; PyTorch lets one stand for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    stretch: Sequence[int] | None = None,
) -> list[Index]:
    """For each axis the places of each window, (windows, kernel); -1 for padding.

    Args:
        sizes: Of the axes; the arguments that follow have an item for each.
        kernel, stride, dilation: Of the windows.
        padding: At both ends; what is negative crops.
        stretch: Elements lie that far apart, as a transposed convolution sees them.
    """
    found, apart = [], stretch or [1] * len(sizes)
    every = zip(sizes, kernel, stride, padding, dilation, apart, strict=True)
    for size, k, step, (before, after), gap, far in every:
        length = max((size - 1) * far + 1, 0)
        free = length + before + after - gap * (k - 1) - 1
        starts = np.arange(free // step + 1) * step - before
        place = starts[:, None] + np.arange(k) * gap
        inside = (place >= 0) & (place < length) & (place % far == 0)
        found.append(np.where(inside, place // far, -1))
    return found


def positions(shape: Sequence[int], places: Sequence[Index]) -> Index:
    """Flat positions of windows on the last axes, (..., *windows, *kernel)."""
    n = len(places)
    lead = tuple(shape[: len(shape) - n])
    flat = np.arange(math.prod(lead)).reshape(*lead, *[1] * (2 * n))
    for i, (size, place) in enumerate(zip(shape[len(lead) :], places, strict=True)):
        wide = [1] * (2 * n)
        wide[i], wide[n + i] = place.shape
        place = place.reshape(wide)
        flat = np.where((flat < 0) | (place < 0), -1, flat * size + place)
    return flat


def gathered(x: Node, places: Sequence[Index], outside: float) -> Node:
    """The elements of each window along a last axis; `outside` is in the padding."""
    place = positions(x.shape, places)
    inner = math.prod(place.shape[x.ndim :])
    place = place.reshape(*place.shape[: x.ndim], inner)
    index = np.where(place < 0, x.size, place)
    return graph.gather(x, np.asarray(outside), index=index)


def convolved(
    x: Node,
    weight: Node,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    stretch: Sequence[int] | None,
    groups: int,
) -> Node:
    """A convolution: the `windows` of x times the channels of a weight, by groups."""
    n = weight.ndim - 2
    batch, channels, made = x.shape[0], x.shape[1] // groups, weight.shape[0]
    axes = windows(x.shape[2:], weight.shape[2:], stride, padding, dilation, stretch)
    place, taps = positions(x.shape, axes), math.prod(weight.shape[2:])
    out = place.shape[2 : 2 + n]
    place = place.reshape(batch, groups, channels, math.prod(out), taps)
    place = place.transpose(0, 1, 3, 2, 4)
    place = place.reshape(batch, groups, math.prod(out), channels * taps)
    rows = graph.gather(x, index=place)
    columns = graph.reshape(weight, (groups, made // groups, channels * taps))
    y = graph.matmul(rows, graph.permute_dims(columns, (0, 2, 1)))
    return graph.reshape(graph.permute_dims(y, (0, 1, 3, 2)), (batch, made, *out))


# Groups -------------------------------------------------------------------------------


# A reduction of rows (and of how many elements each has), and what it ignores.
_REDUCTIONS: dict[str, tuple[Callable[..., Node], float]] = {
    "sum": (lambda rows, counts: graph.sum(rows, axis=-1), 0.0),
    "mean": (
        lambda rows, counts: graph.sum(rows, axis=-1) / counts.astype(float),
        0.0,
    ),
    # Times 1, since an honest product rounds even where one factor is all there is.
    "prod": (lambda rows, counts: graph.prod(rows * 1.0, axis=-1), 1.0),
    "max": (lambda rows, counts: graph.max(rows, axis=-1), -math.inf),
    "min": (lambda rows, counts: graph.min(rows, axis=-1), math.inf),
}


def grouped(
    values: Node,
    group: Index,
    count: int,
    reduce: str,
    start: Node | None = None,
    count_start: bool = True,
) -> Node:
    """The reduction of each group.

    Each group becomes a row of positions, filled up with a position that holds what the
    reduction ignores; the reduction itself is the engine's, along the rows.

    Args:
        values: A node.
        group: For each of its elements, flat, a number below `count`, or -1 for none.
        count: How many groups there are.
        reduce: A key of `_REDUCTIONS`, also "amax" and "amin".
        start: One more element for each group.
        count_start: Whether a mean counts it.
    """
    kept = np.flatnonzero(group >= 0)
    order = kept[np.argsort(group[kept], kind="stable")]
    sizes = np.bincount(group[kept], minlength=count)
    rank = np.arange(order.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    fill = values.size
    table = np.full((count, max(int(sizes.max(initial=0)), 1)), fill, np.intp)
    table[group[order], rank] = order
    function, ignored = _REDUCTIONS[reduce.removeprefix("a")]
    sources: list[Any] = [values, np.asarray(ignored)]
    if start is not None:
        sources.append(start)
        own = np.arange(count)[:, None] + fill + 1
        table = np.concatenate((own, table), axis=1)
        sizes = sizes + count_start
    return function(graph.gather(*sources, index=table), sizes)


def reduced_into(
    x: Node, place: Index, source: Node, reduce: str, own: bool = True
) -> Node:
    """x with the elements of `source` reduced into it, at their flat positions.

    `own` says that the element of x itself is one of them.
    """
    group, flat = place.ravel(), graph.reshape(x, (x.size,))
    y = grouped(source, group, x.size, reduce, flat if own else None)
    if not own:
        y = graph.where(np.isin(np.arange(x.size), group), y, flat * 1.0)
    return graph.reshape(y, x.shape)


def prefixes(combine: Callable[..., Any], x: Any, axis: int) -> Any:
    """What all prefixes along an axis combine to, by doubling their length."""
    y, step = both(lambda part: graph.moveaxis(part, axis, -1), x), 1
    while step < x.shape[axis]:
        later = combine(y[..., :-step], y[..., step:])
        y = both(lambda *ends: graph.concat(ends, -1), y[..., :step], later)
        step *= 2
    return both(lambda part: graph.moveaxis(part, -1, axis), y)
