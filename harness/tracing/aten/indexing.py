"""Operators that write at indices, and add there: scatter-add is the engine's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradwatch.harness.tracing.aten.moves import moved, positions
from gradwatch.harness.tracing.values import as_exact, as_float
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def _added(x: Node, place: torch.Tensor, values: Node) -> Node:
    """x, and values added at their flat positions."""
    spread = graph.broadcast_to(values, tuple(place.shape))
    return x + graph.scatter_add(spread, index=place.numpy(), shape=x.shape)


def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Node:
    x, source, index = as_float(x), as_float(source), as_exact(index)
    if not x.ndim:
        return x + graph.sum(source)
    place = torch.gather(positions(x), dim, index) if index.numel() else index
    corner = tuple(slice(0, n) for n in index.shape)
    return _added(x, place, source[corner] if index.ndim else source)


def _index_put(
    x: Any, indices: Any, values: Any, accumulate: bool = False, *_: Any
) -> Node:
    x, values = as_float(x), as_float(values)
    chosen = [as_exact(i) for i in indices]
    place = torch.ops.aten.index(positions(x), chosen)
    if accumulate:
        return _added(x, place, values)
    return moved(lambda a, v: torch.ops.aten.index_put(a, chosen, v), x, values)


def _put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Node:
    x, source, index = as_float(x), as_float(source), as_exact(index)
    if accumulate:
        place = torch.remainder(index, max(x.size, 1))
        return _added(x, place, graph.reshape(source, tuple(place.shape)))
    return moved(lambda a, v: torch.put(a, index, v), x, source)


def _index_add(x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1) -> Node:
    x, source = as_float(x), as_float(source)
    place = (
        torch.index_select(positions(x), dim, as_exact(index))
        if x.ndim
        else torch.zeros(source.shape, dtype=torch.long)
    )
    return _added(x, place, source if alpha == 1 else alpha * source)


ON_VALUES: dict[str, Rule] = {
    "scatter_add": _scatter_add,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "put": _put,
    "index_add": _index_add,
}
