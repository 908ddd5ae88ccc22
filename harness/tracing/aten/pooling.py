"""Pooling: windows gathered, then reduced."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gradwatch.harness.tracing.aten.reductions import total
from gradwatch.harness.tracing.rules.windows import (
    Index,
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


def _strided(
    n: int,
    x: Node,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
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
    sums = total(_gathered(x, places, 0.0), -1)
    counts = [(place >= 0).sum(axis=1) for place in counted]
    return sums / constant(divisor or functools.reduce(np.multiply.outer, counts))


def _gathered(x: Node, places: Windows, padding: float) -> Node:
    """The elements of each window along a last axis."""
    place = positions(x.shape, places)
    inner = math.prod(place.shape[x.ndim :])
    place = place.reshape(*place.shape[: x.ndim], inner)
    index = np.where(place < 0, x.size, place)
    return graph.gather(x, constant(padding), index=index)


def _largest(x: Node, places: Windows) -> tuple[Node, Any]:
    """The largest of each window, and its flat position in the channel."""
    picked, n = _gathered(x, places, -np.inf), len(places)
    best = np.argmax(picked.value, axis=-1)[..., None]
    place = positions(x.shape[-n:], places).reshape(picked.shape[-n - 1 :])
    at = np.take_along_axis(np.broadcast_to(place, picked.shape), best, -1)[..., 0]
    return graph.max(picked, axis=picked.ndim - 1), torch.from_numpy(at)


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


def _maxima(
    n: int,
    x: Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> tuple[Node, Any]:
    return _largest(x, _strided(n, x, kernel, stride, padding, dilation, ceil))


def _adaptive_average(x: Node, counts: Sequence[int]) -> Node:
    places = _adaptive(x, counts)
    return _average(x, places, places)


def _adaptive_maxima(x: Node, counts: Sequence[int]) -> tuple[Node, Any]:
    return _largest(x, _adaptive(x, counts))


ON_FLOATS: dict[str, Rule] = {}
for _n in (2, 3):
    ON_FLOATS |= {
        f"avg_pool{_n}d": functools.partial(_averages, _n),
        f"max_pool{_n}d_with_indices": functools.partial(_maxima, _n),
        f"_adaptive_avg_pool{_n}d": _adaptive_average,
        f"adaptive_max_pool{_n}d": _adaptive_maxima,
    }
