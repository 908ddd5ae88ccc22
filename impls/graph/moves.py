"""Primitives that move elements, and the sums that are their transposes.

`gather` and `scatter_add` do every move that reshape, permute_dims and broadcast_to do
not (impls/graph/indexing.py): a table of flat positions describes the move.
"""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import (
    Array,
    Foreign,
    Node,
    as_array,
    as_nodes,
    axes_of,
    broadcast,
    fit,
    no_gradient,
    primitive,
    public,
)


def _sum_to(x: Array, shape: tuple[int, ...]) -> Array:
    new = x.ndim - len(shape)
    copied = (i + new for i, n in enumerate(shape) if n == 1 and x.shape[i + new] != 1)
    axes = (*range(new), *copied)
    # Not np.sum, which takes twice as long for few elements.
    return np.add.reduce(x, axes, x.dtype, keepdims=True).reshape(shape)


def _filled(x: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape with the length that -1 stands for."""
    size, others = math.prod(x), math.prod(n for n in shape if n != -1)
    filled = tuple(size // max(others, 1) if n == -1 else n for n in shape)
    if math.prod(filled) != size:
        raise ValueError(f"{size} elements cannot have the shape {shape}")
    return filled


def _copied(x: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape; ValueError if x does not broadcast to it."""
    if np.broadcast_shapes(x, shape) != tuple(shape):
        raise ValueError(f"{x} cannot be broadcast to {shape}")
    return tuple(shape)


_reshape = primitive(
    "reshape",
    lambda x, shape: np.reshape(x, shape),
    lambda dy, y, x, shape: (reshape(dy, x.shape),),
    shape=_filled,
)
_permute_dims = primitive(
    "permute_dims",
    lambda x, axes: np.transpose(x, axes),
    lambda dy, y, x, axes: (permute_dims(dy, tuple(np.argsort(axes).tolist())),),
    shape=lambda x, axes: tuple(x[i] for i in axes),
)
_broadcast_to = primitive(
    "broadcast_to",
    lambda x, shape: np.broadcast_to(x, shape),
    lambda dy, y, x, shape: (fit(dy, y.shape, x.shape),),
    shape=_copied,
)
sum_to = public(
    primitive(
        "sum_to",
        _sum_to,
        lambda dy, y, x, shape: (broadcast_to(dy, x.shape),),
        shape=lambda x, shape: tuple(shape),
    )
)
_astype = primitive(
    "astype",
    lambda x, dtype: x.astype(dtype),
    lambda dy, y, x, dtype: (astype(dy, x.dtype),),
    dtype=lambda x, dtype: dtype,
    shape=broadcast,
)
stop_gradient = public(
    primitive("stop_gradient", as_array, no_gradient, shape=broadcast)
)


@public
def reshape(x: Any, shape: Any, *more: int) -> Node:
    """The same elements in another shape; one length may be -1."""
    (x,) = as_nodes((x,))
    new = tuple(shape) if isinstance(shape, (tuple, list)) else (shape, *more)
    return x if x.shape == new else _reshape(x, shape=new)


@public
def permute_dims(x: Any, axes: Any, *more: int) -> Node:
    """The axes in another order."""
    (x,) = as_nodes((x,))
    order = tuple(axes) if isinstance(axes, (tuple, list)) else (axes, *more)
    axes = axes_of(order, x.ndim)
    return x if axes == tuple(range(x.ndim)) else _permute_dims(x, axes=axes)


@public
def broadcast_to(x: Any, shape: tuple[int, ...]) -> Node:
    """Copies along new axes and along those of length 1."""
    (x,) = as_nodes((x,))
    return x if x.shape == tuple(shape) else _broadcast_to(x, shape=tuple(shape))


@public
def astype(x: Any, dtype: Any, /, *, copy: bool = True) -> Node:
    """The values in another dtype: another node's, or "int64", or bool."""
    if not isinstance(x, Node):
        (x,) = as_nodes((x,))
    dtype = np.dtype(dtype)
    return x if x.dtype == dtype else _astype(x, dtype=dtype)


# Moves by index: these two, each the other's VJP, carry every other move --------------


def _gather(*sources: Array, index: Array, batch: int = 0) -> Array:
    ahead = sources[0].shape[:batch]
    whole = [s.reshape(*ahead, math.prod(s.shape[batch:])) for s in sources]
    if index.size and (len(whole) > 1 or index.min() < 0):
        # The place to which an index of -1 points.
        whole.append(np.zeros_like(whole[0], shape=(*ahead, 1)))
        whole = [np.concatenate(whole, axis=-1)]
    # Along an axis `take` is twice as fast, and its result is in order.
    return as_array(np.take(whole[0], index, axis=-1) if batch else whole[0][index])


#: Number of values of a batch whose positions and sums stay in the cache.
CACHED = 1 << 15


def _scatter_add(
    values: Array, *, index: Array, shape: tuple[int, ...], batch: int = 0
) -> Array:
    count, size = math.prod(shape[:batch]), math.prod(shape[batch:])
    rows, places = values.reshape(count, index.size), index.reshape(-1)
    total = np.zeros_like(values, shape=(count, size + 1))  # the last: where -1 leads
    together = max(1, min(count, CACHED // max(index.size, 1)))
    if isinstance(values, Foreign):  # a device has no such cache
        together = count
    if together > 1:
        places = (places + (size + 1) * np.arange(together)[:, None]).reshape(-1)
    for start in range(0, count, together):
        some = rows[start : start + together].reshape(-1)
        there = total[start : start + together].reshape(-1)
        np.add.at(there, places[: some.size], some)
    return total[:, :-1].reshape(shape)


def _gather_rule(
    dy: Node, y: Node, *sources: Node, index: Array, batch: int = 0
) -> list[Node | None]:
    parts: list[Node | None] = []
    start = 0
    for source in sources:
        place, size = index, math.prod(source.shape[batch:])
        if len(sources) > 1:
            inside = (index >= start) & (index < start + size)
            place = np.where(inside, index - start, -1)
        parts.append(scatter_add(dy, index=place, shape=source.shape, batch=batch))
        start += size
    return parts


_gather_primitive = primitive(
    "gather",
    _gather,
    _gather_rule,
    shape=lambda *x, index, batch=0: (*x[0][:batch], *index.shape),
)
_scatter_primitive = primitive(
    "scatter_add",
    _scatter_add,
    lambda dy, y, values, index, shape, batch=0: (
        gather(dy, index=index, batch=batch),
    ),
    shape=lambda x, index, shape, batch=0: shape,
)


@public
def gather(*sources: Any, index: Any, batch: int = 0) -> Node:
    """Elements picked by their flat position, in the shape of `index`.

    Args:
        sources: Nodes of any shapes; positions count through them one after another,
            each in C order.
        index: Integers of any shape, below the number of elements; -1 gives 0.
        batch: So many axes in front, which all sources have, stay; positions count in
            the axes behind them, and are the same for all.

    Raises:
        IndexError: a position lies outside.
    """
    places = exact_index(index)
    nodes = as_nodes(sources)
    size = builtins.sum(math.prod(node.shape[batch:]) for node in nodes)
    _check_places(places, size)
    return _gather_primitive(*nodes, index=places, **_ahead(batch))


@public
def scatter_add(
    values: Any, *, index: Any, shape: tuple[int, ...], batch: int = 0
) -> Node:
    """Zeros of a shape, to which each value is added at its flat position.

    Args:
        values: A node of the shape of `index`.
        index: Integers, below the number of elements of `shape`; values at -1 are
            dropped. Where several values have one position, their sum stands.
        batch: So many axes of `shape` in front are the values', too.

    Raises:
        IndexError: a position lies outside.
        ValueError: `index` has not the shape of the values.
    """
    places = exact_index(index)
    (node,) = as_nodes((values,))
    if (*shape[:batch], *places.shape) != node.shape:
        raise ValueError(f"values of shape {node.shape}, index of {places.shape}")
    _check_places(places, math.prod(shape[batch:]))
    how = {"index": places, "shape": tuple(shape), **_ahead(batch)}
    return _scatter_primitive(node, **how)


def _ahead(batch: int) -> dict[str, int]:
    return {"batch": batch} if batch else {}


def exact_index(index: Any) -> Array:
    """Whole numbers to index with; a node becomes its values.

    Raises:
        IndexError: fractions, or a node that rounding could change.
    """
    if isinstance(index, Node):
        if index.floating and index.primitive is not None:
            raise IndexError(
                "an index computed from floating numbers could be another one after "
                "rounding: write xp.where or xp.max, or make the index an input "
                '(Op(..., constants="index"))'
            )
        index = index.value
    places = np.asarray(index)
    if places.size and places.dtype.kind not in "iu":
        raise IndexError(f"an index holds integers, not {places.dtype}")
    return places.astype(np.intp, copy=False)


def _check_places(places: Array, count: int) -> None:
    if places.size and not (places.min() >= -1 and places.max() < count):
        outside = places[(places < -1) | (places >= count)][0]
        raise IndexError(f"index {outside} lies outside of {count} elements")


def together(x: Node, axis: Any) -> tuple[Node, tuple[int, ...], tuple[int, ...]]:
    """x with axes joined as the last; its other lengths; its shape with 1 for axes."""
    axes = axes_of(axis, x.ndim)
    rest = tuple(i for i in range(x.ndim) if i not in axes)
    left = tuple(x.shape[i] for i in rest)
    kept = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    merged = math.prod(x.shape[i] for i in axes)
    if axes == (x.ndim - 1,):
        return x, left, kept
    ordered = (
        permute_dims(x, (*rest, *axes)) if (*rest, *axes) != tuple(range(x.ndim)) else x
    )
    return reshape(ordered, (*left, merged)), left, kept
