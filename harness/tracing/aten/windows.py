"""Windows, groups and prefixes of elements by their flat positions, also for lax.

Convolution and pooling are windows gathered, then reduced.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.tracing.values import both, constant
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.indexing import gathered, positions, windows
from gradwatch.impls.graph.products import convolved

Index = NDArray[np.intp]
Rule = Callable[..., Any]


def listed(value: Any, count: int) -> list[int]:
    """One number for each spatial axis; PyTorch lets one stand for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    return values * count if len(values) == 1 else values


# Groups -------------------------------------------------------------------------------


# A reduction of rows (and the number of elements in each), and its neutral element.
_REDUCTIONS: dict[str, tuple[Callable[..., Node], float]] = {
    "sum": (lambda rows, counts: graph.sum(rows, axis=-1), 0.0),
    "mean": (lambda rows, counts: graph.sum(rows, axis=-1) / counts.astype(float), 0.0),
    "prod": (lambda rows, counts: graph.prod(rows, axis=-1), 1.0),
    "max": (lambda rows, counts: graph.max(rows, axis=-1), -math.inf),
    "min": (lambda rows, counts: graph.min(rows, axis=-1), math.inf),
}


def grouped(
    values: Node, group: Index, count: int, reduce: str, start: Node | None = None
) -> Node:
    """The reduction of each group.

    Each group becomes a row of positions, filled up with the position of the neutral
    element; the reduction itself is the engine's, along the rows.

    Args:
        values: A node.
        group: For each of its elements, flat, a number below `count`, or -1 for none.
        count: How many groups there are.
        reduce: A key of `_REDUCTIONS`, also "amax" and "amin".
        start: One more element for each group.
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
        sizes = sizes + 1
    return function(graph.gather(*sources, index=table), sizes)


def reduced_into(
    x: Node, place: Index, source: Node, reduce: str, own: bool = True
) -> Node:
    """x with the elements of `source` reduced into it, at their flat positions.

    With `own` the element of x itself takes part.
    """
    group, flat = place.ravel(), graph.reshape(x, (x.size,))
    y = grouped(source, group, x.size, reduce, flat if own else None)
    if not own:
        y = graph.where(np.isin(np.arange(x.size), group), y, flat * 1.0)
    return graph.reshape(y, x.shape)


def prefixes(combine: Callable[..., Any], x: Any, axis: int) -> Any:
    """The combinations of all prefixes along an axis, by doubling their length."""
    y, step = both(lambda part: graph.moveaxis(part, axis, -1), x), 1
    while step < x.shape[axis]:
        later = combine(y[..., :-step], y[..., step:])
        y = both(lambda *ends: graph.concat(ends, -1), y[..., :step], later)
        step *= 2
    return both(lambda part: graph.moveaxis(part, -1, axis), y)


# Convolution and pooling ------------------------------------------------------------


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
    """A convolution: windows gathered, then one matrix product for each group."""
    n = weight.ndim - 2
    stride, padding, dilation, more = (
        listed(v, n) for v in (stride, padding, dilation, output_padding)
    )
    ends, apart = [(p, p) for p in padding], None
    if transposed:
        each = zip(weight.shape[2:], dilation, padding, more, strict=True)
        ends = [(d * (k - 1) - p, d * (k - 1) - p + m) for k, d, p, m in each]
        stride, apart = [1] * n, stride
        size, *rest = weight.shape
        weight = graph.reshape(weight, (groups, size // groups, *rest))
        weight = graph.permute_dims(weight, (0, 2, 1, *range(3, n + 3)))
        weight = graph.reshape(weight, (rest[0] * groups, size // groups, *rest[1:]))
        weight = graph.flip(weight, axis=tuple(range(2, n + 2)))
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
) -> list[Index]:
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


def _adaptive(x: Node, counts: Sequence[int]) -> list[Index]:
    """Windows of adaptive pooling, `counts` along the axes, as PyTorch cuts them."""
    found = []
    for n, count in zip(x.shape[-len(counts) :], counts, strict=True):
        cuts = np.arange(count + 1) * n
        start, stop = cuts[:-1, None] // count, -(-cuts[1:, None] // count)
        place = start + np.arange((stop - start).max(initial=0))
        found.append(np.where(place < stop, place, -1))
    return found


def _average(
    x: Node,
    places: Sequence[Index],
    counted: Sequence[Index] | None = None,
    divisor: int | None = None,
) -> Node:
    """The sum of each window, divided by the number of its places that count."""
    counts = [(place >= 0).sum(axis=1) for place in counted or places]
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


def _largest(x: Node, places: Sequence[Index]) -> tuple[Node, Any]:
    """The largest element of each window, and its flat position in the channel."""
    import torch

    picked, n = gathered(x, places, -np.inf), len(places)
    best = np.argmax(picked.value, axis=-1)[..., None]
    place = positions(x.shape[-n:], places).reshape(picked.shape[-n - 1 :])
    at = np.take_along_axis(np.broadcast_to(place, picked.shape), best, -1)[..., 0]
    y = graph.max(picked, axis=picked.ndim - 1)
    ties = (picked.value == y.value[..., None]).sum() > y.size
    if ties and graph.convention(picked, axis=picked.ndim - 1, indexed=True) == "even":
        # Of equal ones the first, though other functions share (abs has slope 0).
        flat = np.arange(y.size).reshape(y.shape) * picked.shape[-1]
        y = graph.gather(picked, index=flat + best[..., 0])
    return y, torch.from_numpy(at)


ON_FLOATS: dict[str, Rule] = {"convolution": _convolution}
for _n in (2, 3):
    ON_FLOATS |= {
        f"avg_pool{_n}d": functools.partial(_averages, _n),
        f"max_pool{_n}d_with_indices": lambda x, *how, n=_n: _largest(
            x, _strided(n, x, *how)
        ),
        f"_adaptive_avg_pool{_n}d": lambda x, counts: _average(x, _adaptive(x, counts)),
        f"adaptive_max_pool{_n}d": lambda x, counts: _largest(x, _adaptive(x, counts)),
    }
