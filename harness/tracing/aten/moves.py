"""Operators that only move elements: PyTorch's own, run on 1, 2, 3, and so on.

The operator's result *is* the index of the gather that stands for it in the engine, so
that one pair of primitives, gather and scatter-add, serves all of them. The operators
that add or reduce at indices follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gradwatch.harness.tracing.aten.windows import reduced_into
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import as_exact, as_float, as_mask, written_over
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]

_MOVES = """
    alias as_strided as_strided_scatter broadcast_in_dim cat clone constant_pad_nd copy
    copy_strided diagonal diagonal_scatter expand flip gather index index_put
    index_select lift_fresh masked_scatter masked_select _pack_padded_sequence permute
    put repeat scatter select slice slice_scatter split_with_sizes squeeze take unbind
    unfold unsqueeze view
"""
MOVES = frozenset(_MOVES.split())
_VIEWS = """
    alias broadcast_in_dim clone copy_strided expand lift_fresh permute squeeze
    unsqueeze view
"""
VIEWS = frozenset(_VIEWS.split())
_CHOOSE = {"index", "indices", "lengths", "mask"}  # arguments that say where, not what


def positions(x: Node) -> torch.Tensor:
    """The flat position of each element, in the shape of x."""
    return torch.arange(math.prod(x.shape)).reshape(x.shape)


def is_move(name: str) -> bool:
    """Whether the operator of a name, also one with _copy, only moves elements."""
    return name in MOVES or name.removesuffix("_copy") in MOVES


def move(target: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """The results of an ATen operator of `MOVES` for its float arguments."""
    if target._schema.name.split("::")[1] in VIEWS:
        unheld = torch.empty(args[0].shape, device="meta")
        return _viewed(args[0], target(unheld, *args[1:], **kwargs))
    known = target._schema.arguments
    given = {**dict(zip((a.name for a in known), args, strict=False)), **kwargs}
    numbers = [a.name for a in known if str(a.type) == "number" and a.name in given]
    for argument in known:
        value = given.get(argument.name)
        if argument.name in _CHOOSE:
            given[argument.name] = tree_map(as_exact, value)
        elif value is not None and (
            "Tensor" in str(argument.type) or argument.name in numbers
        ):
            given[argument.name] = tree_map(as_float, value)

    def run(**named: Any) -> Any:  # a literal number has a position, too
        return target(**{k: float(v) if k in numbers else v for k, v in named.items()})

    return moved(run, **{k: v for k, v in given.items() if v is not None})


def _viewed(x: Node, out: torch.Tensor) -> Node:
    """A view of all elements of a node, or copies of it, by its strides."""
    out = out if out._is_view() else torch.empty(out.shape, device="meta")
    strides, shape = out.stride(), tuple(out.shape)
    if not out.numel():
        return graph.reshape(graph.gather(x, index=np.zeros(0, np.intp)), shape)
    moves = [i for i, n in enumerate(shape) if n > 1 and strides[i]]
    order = sorted(moves, key=lambda i: -strides[i])
    dense = graph.reshape(x, tuple(shape[i] for i in order))
    turned = graph.permute_dims(dense, tuple(map(order.index, moves)))
    lengths = tuple(n if i in moves else 1 for i, n in enumerate(shape))
    return graph.broadcast_to(graph.reshape(turned, lengths), shape)


def moved(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The results of an operator that copies elements of nodes, and zeros.

    Args:
        operator: Takes tensors where nodes are given, and moves their elements.
        args: Its arguments; all but nodes are passed to it as they are.
        kwargs: Likewise.
    """
    flat, spec = tree_flatten((args, kwargs))
    sources: list[Node] = []
    # Positions from 1 on, so that a 0 written by the operator is no element.
    start = 1
    for place, value in enumerate(flat):
        if isinstance(value, Node):
            sources.append(value)
            stop = start + value.size
            numbered = torch.arange(start, stop, dtype=torch.float64)
            flat[place], start = numbered.reshape(value.shape), stop
    args, kwargs = tree_unflatten(flat, spec)

    def gathered(out: Any) -> Any:
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return out
        return graph.gather(*sources, index=out.numpy().astype(np.intp) - 1)

    return tree_map(gathered, operator(*args, **kwargs))


# Adding at indices --------------------------------------------------------------------


def _added(x: Node, place: torch.Tensor, values: Node) -> Node:
    """x with values added at flat positions."""
    spread = graph.broadcast_to(values, tuple(place.shape))
    return x + graph.scatter_add(spread, index=place.numpy(), shape=x.shape)


def _placed(x: Node, dim: int, index: Any, source: Node) -> tuple[Any, Node]:
    """Flat positions that an index names along an axis, and the values for them."""
    if not x.ndim:
        return torch.zeros(source.shape, dtype=torch.long), source
    place = torch.gather(positions(x), dim, index) if index.numel() else index
    corner = tuple(slice(0, n) for n in index.shape)
    return place, source[corner] if corner else source


def _scatter_add(x: Any, dim: int, index: Any, source: Any) -> Node:
    x, source, index = as_float(x), as_float(source), as_exact(index)
    return _added(x, *_placed(x, dim, index, source))


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


def _embedding(
    table: Any, index: Any, padding: int = -1, by_frequency: bool = False, *_: Any
) -> Node:
    """Rows of a table; padding rows have, as documented, no gradient."""
    table, index = as_float(table), as_exact(index)
    rows = graph.gather(table, index=positions(table).numpy().take(index, 0))
    if by_frequency:
        often = torch.bincount(index.reshape(-1), minlength=1)[index][..., None]
        rows = written_over(rows / as_float(often), rows)
    if not (index == padding).any():
        return rows
    hidden = as_mask((index == padding)[..., None])
    return graph.where(hidden, graph.stop_gradient(rows), rows)


def _scatter_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Node:
    x, source, index = as_float(x), as_float(source), as_exact(index)
    if not index.numel():
        return x
    place, source = _placed(x, dim, index, source)
    return reduced_into(x, place.numpy(), source, reduce, include_self)


def _index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, **how: bool
) -> Node:
    """A scatter whose index is the same along the other axes."""
    shape = [1] * source.ndim
    shape[dim : dim + 1] = [-1] if source.ndim else []
    place = as_exact(index).reshape(shape).expand(source.shape)
    return _scatter_reduce(x, dim, place, source, reduce, **how)


# Sparse tensors are dense nodes ------------------------------------------------------


def _scattered(
    sparse: int, dense: int, size: Any, index: Any, values: Any, **_: Any
) -> Node:
    """A dense node of values at their places; values at one place are added up."""
    shape, held = tuple(size), as_exact(index)
    place = torch.arange(math.prod(shape)).reshape(shape)[tuple(held)]
    return graph.scatter_add(as_float(values), index=place.numpy(), shape=shape)


def _compressed(
    bounds: Any, places: Any, values: Any, size: Any, *, layout: Any = None, **_: Any
) -> Node:
    """A dense node of compressed sparse rows (CSR) or columns (CSC)."""
    if layout not in (torch.sparse_csr, torch.sparse_csc):
        raise Untraceable("aten.sparse_compressed_tensor", "holds blocks", "sparse")
    bounds, places = as_exact(bounds), as_exact(places)
    lines = torch.arange(len(bounds) - 1).repeat_interleave(bounds.diff())
    index = (lines, places) if layout == torch.sparse_csr else (places, lines)
    return _scattered(2, 0, size, torch.stack(index), values)


#: Operators that may return a sparse tensor, whose absent elements are zero.
ON_SPARSE: dict[str, Rule] = {
    "_sparse_coo_tensor_with_dims_and_tensors": _scattered,
    "sparse_compressed_tensor": _compressed,
    **dict.fromkeys(  # without a gradient for zeros, which a sparse tensor has not
        ("_to_sparse", "_to_sparse_csr", "_to_sparse_csc"),
        lambda x, *_, **__: graph.where((y := as_float(x)).value != 0, y, 0.0),
    ),
    "_coalesce": as_float,
}

ON_VALUES: dict[str, Rule] = {
    **ON_SPARSE,
    "_to_dense": lambda x, *_, **__: as_float(x),
    "embedding": _embedding,
    "scatter_add": _scatter_add,
    "scatter_reduce": _scatter_reduce,
    "index_reduce": _index_reduce,
    "index_put": _index_put,
    "put": _put,
}
