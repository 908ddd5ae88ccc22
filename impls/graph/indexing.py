"""Moves that a table of flat positions describes: indexing, joining, windows.

Each function lets NumPy move the numbers 0, 1, 2, ... and gathers by the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import Array, Node, as_nodes, axes_of, public
from gradwatch.impls.graph.moves import (
    broadcast_to,
    exact_index,
    gather,
    permute_dims,
    reshape,
    scatter_add,
    stop_gradient,
)


def _numbered(shape: Sequence[int]) -> Array:
    return np.arange(math.prod(shape)).reshape(shape)


def _unheld(shape: Sequence[int]) -> Array:
    """As `_numbered`, with a shape and strides, but without numbers."""
    return np.empty(shape)  # memory that is not written takes no pages


def _exact(part: Any) -> Any:
    """One part of an index; a node must hold exact integers or booleans."""
    if not isinstance(part, Node):
        return part
    if part.dtype != bool:
        return exact_index(part)
    if part.floating:
        raise IndexError(
            "which elements a mask picks must not depend on rounding: write "
            "xp.where(mask, x, 0.0) instead of x[mask]"
        )
    return part.value


@public
def take(
    x: Any, indices: Any = None, *, axis: int | None = None, index: Any = None
) -> Node:
    """Elements of an axis by their positions; or x[index]."""
    (x,) = as_nodes((x,))
    if indices is None:
        parts = index if isinstance(index, tuple) else (index,)
        if all(p is None or isinstance(p, slice | type(...)) for p in parts):
            seen = _unheld(x.shape)[parts]
            if seen.size == x.size and seen.flags.c_contiguous:
                return reshape(x, seen.shape)
        return gather(x, index=_numbered(x.shape)[tuple(map(_exact, parts))])
    if axis is None and x.ndim != 1:
        raise ValueError(f"say along which of {x.ndim} axes: axis=")
    (along,) = axes_of(axis or 0, x.ndim)
    places = exact_index(indices)
    return gather(x, index=np.take(_numbered(x.shape), places, axis=along))


@public
def take_along_axis(x: Any, indices: Any, *, axis: int = -1) -> Node:
    """Elements of an axis, picked separately at each place of the other axes."""
    (x,) = as_nodes((x,))
    places = exact_index(indices)
    return gather(x, index=np.take_along_axis(_numbered(x.shape), places, axis))


@public
def put(values: Any, *, index: Any, shape: tuple[int, ...]) -> Node:
    """Zeros of a shape, to which the values are added at [index]; VJP of `take`."""
    (values,) = as_nodes((values,))
    parts = index if isinstance(index, tuple) else (index,)
    places = np.asarray(_numbered(shape)[tuple(_exact(part) for part in parts)])
    if values.shape != places.shape:
        values = broadcast_to(values, places.shape)
    return scatter_add(values, index=places, shape=shape)


# Axes -------------------------------------------------------------------------------


@public
def expand_dims(x: Any, axis: Any = 0) -> Node:
    """New axes of length 1, counted in the result."""
    (x,) = as_nodes((x,))
    return reshape(x, np.expand_dims(_numbered(x.shape), axis).shape)


@public
def squeeze(x: Any, axis: Any = None) -> Node:
    """Without axes of length 1: those named, or all."""
    (x,) = as_nodes((x,))
    return reshape(x, np.squeeze(_numbered(x.shape), axis).shape)


@public
def matrix_transpose(x: Any) -> Node:
    """The last two axes exchanged."""
    (x,) = as_nodes((x,))
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


@public
def moveaxis(x: Any, source: Any, destination: Any) -> Node:
    """Axes brought to other places, the others in their order."""
    (x,) = as_nodes((x,))
    origin, goal = axes_of(source, x.ndim), axes_of(destination, x.ndim)
    order = [i for i in range(x.ndim) if i not in origin]
    for to, i in sorted(zip(goal, origin, strict=True)):
        order.insert(to, i)
    return permute_dims(x, tuple(order))


@public
def flip(x: Any, axis: Any = None) -> Node:
    """Elements in reverse order along axes, or along all."""
    (x,) = as_nodes((x,))
    return gather(x, index=np.flip(_numbered(x.shape), axes_of(axis, x.ndim)))


@public
def roll(x: Any, shift: Any, axis: Any = None) -> Node:
    """Elements moved along axes; those at the end move to the start."""
    (x,) = as_nodes((x,))
    return gather(x, index=np.roll(_numbered(x.shape), shift, axis))


@public
def repeat(x: Any, repeats: Any, *, axis: int | None = None) -> Node:
    """Each element several times."""
    (x,) = as_nodes((x,))
    return gather(x, index=np.repeat(_numbered(x.shape), exact_index(repeats), axis))


@public
def tile(x: Any, repetitions: Any) -> Node:
    """The whole array several times, side by side."""
    (x,) = as_nodes((x,))
    return gather(x, index=np.tile(_numbered(x.shape), repetitions))


@public
def tril(x: Any, *, k: int = 0) -> Node:
    """The elements up to the k-th diagonal, zeros above."""
    (x,) = as_nodes((x,))
    return gather(x, index=np.tril(_numbered(x.shape) + 1, k) - 1)


@public
def triu(x: Any, *, k: int = 0) -> Node:
    """The elements from the k-th diagonal on, zeros below."""
    (x,) = as_nodes((x,))
    return gather(x, index=np.triu(_numbered(x.shape) + 1, k) - 1)


@public
def diagonal(x: Any, *, offset: int = 0) -> Node:
    """The diagonal of the last two axes."""
    (x,) = as_nodes((x,))
    places = np.diagonal(_numbered(x.shape), offset, axis1=-2, axis2=-1)
    return gather(x, index=places)


# Joining ------------------------------------------------------------------------------


@public
def concat(arrays: Sequence[Any], axis: int | None = 0) -> Node:
    """Arrays one after another along an axis; flattened first where it is None."""
    nodes = as_nodes(tuple(arrays))
    starts = np.cumsum([0, *(node.size for node in nodes)])
    tables = [
        _numbered(node.shape) + start
        for node, start in zip(nodes, starts[:-1], strict=True)
    ]
    return gather(*nodes, index=np.concatenate(tables, axis))


@public
def stack(arrays: Sequence[Any], axis: int = 0) -> Node:
    """Arrays of one shape along a new axis."""
    nodes = as_nodes(tuple(arrays))
    shapes = sorted({node.shape for node in nodes})
    if len(shapes) > 1:
        raise ValueError(f"all arrays to stack must have one shape, not {shapes}")
    (along,) = axes_of(axis, nodes[0].ndim + 1)
    return concat([expand_dims(node, along) for node in nodes], axis=along)


@public
def unstack(x: Any, *, axis: int = 0) -> tuple[Node, ...]:
    """The parts of an array along an axis, which they lose."""
    (x,) = as_nodes((x,))
    (along,) = axes_of(axis, x.ndim)
    before = (slice(None),) * along
    return tuple(x[(*before, i)] for i in range(x.shape[along]))


@public
def pad(x: Any, pad_width: Any, mode: str = "constant", *, value: Any = 0.0) -> Node:
    """A border around an array.

    Args:
        x: The array.
        pad_width: As NumPy's: one number, a pair, or a pair for each axis.
        mode: "constant", or a mode of np.pad that copies: "edge", "reflect",
            "symmetric", "wrap".
        value: The value of a constant border.
    """
    (x,) = as_nodes((x,))
    if mode != "constant":
        copying: Any = mode
        return gather(x, index=np.pad(_numbered(x.shape), pad_width, mode=copying))
    places = np.pad(_numbered(x.shape), pad_width, constant_values=-1)
    return filled(x, places, value)


def filled(x: Node, places: Array, value: Any, batch: int = 0) -> Node:
    """Elements gathered; where a place is -1, the value."""
    if not isinstance(value, Node) and value == 0:
        return gather(x, index=places, batch=batch)
    index = np.where(places < 0, math.prod(x.shape[batch:]), places)
    if batch:
        fill = broadcast_to if isinstance(value, Node) else np.broadcast_to
        value = fill(value, (*x.shape[:batch], 1))
    return gather(x, value, index=index, batch=batch)


# Windows --------------------------------------------------------------------------


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    stretch: Sequence[int] | None = None,
) -> list[Array]:
    """For each axis the places of each window, (windows, kernel); -1 for padding.

    Args:
        sizes: Of the axes; the arguments that follow have an item for each.
        kernel, stride, dilation: Of the windows.
        padding: At both ends; a negative one crops.
        stretch: Distance of the elements, as in a transposed convolution.
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


def positions(sizes: Sequence[int], places: Sequence[Array]) -> Array:
    """Flat positions of windows among axes of these sizes, (*windows, *kernel)."""
    n = len(places)
    flat = np.zeros((1,) * (2 * n), dtype=int)
    for i, (size, place) in enumerate(zip(sizes, places, strict=True)):
        wide = [1] * (2 * n)
        wide[i], wide[n + i] = place.shape
        place = place.reshape(wide)
        flat = np.where((flat < 0) | (place < 0), -1, flat * size + place)
    return flat


def gathered(x: Node, places: Sequence[Array], outside: float) -> Node:
    """The elements of each window along a last axis; `outside` is in the padding."""
    n = len(places)
    place = positions(x.shape[-n:], places)
    index = place.reshape(*place.shape[:n], math.prod(place.shape[n:]))
    return filled(x, index, outside, x.ndim - n)


@public
def sliding_windows(
    x: Any,
    size: Any,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    value: Any = 0.0,
) -> Node:
    """The windows of a convolution or a pooling.

    Args:
        x: Shape (..., *lengths): windows slide along as many last axes as `size` has.
        size: Length of a window along each of these axes, such as (3, 3).
        stride, padding, dilation: One number, or one for each axis.
        value: The value of the padding; -inf for a maximum.

    Returns:
        Shape (..., *positions, *size). A convolution is
        einsum("bchwij,ocij->bohw", sliding_windows(x, (3, 3), padding=1), weight),
        a maximum pooling max(sliding_windows(x, (2, 2), stride=2), axis=(-2, -1)).

    Raises:
        ValueError: a window is empty, does not fit, or does not move forward.
    """
    (x,) = as_nodes((x,))
    size = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    strides, borders, gaps = (_each(v, size) for v in (stride, padding, dilation))
    if min(size + strides + gaps) < 1:
        raise ValueError(
            f"window {size}, stride {stride} and dilation {dilation} must be 1 or more"
        )
    lead = x.ndim - len(size)
    lengths, ends = x.shape[lead:], [(p, p) for p in borders]
    places = windows(lengths, size, strides, ends, gaps)
    if not all(map(len, places)):
        raise ValueError(f"windows {size} do not fit into an array {x.shape}")
    return filled(x, positions(lengths, places), value, lead)


def _each(value: Any, size: tuple[int, ...]) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * len(size)
    if len(values) != len(size):
        raise ValueError(f"{len(values)} numbers for windows of {len(size)} axes")
    return values


def shared(x: Node, axis: int) -> Node:
    """x, with a gradient that equal elements along an axis share equally."""
    exact = np.moveaxis(np.asarray(x.value), axis, -1)
    order = exact.argsort(-1)
    differs = np.diff(np.take_along_axis(exact, order, -1), prepend=np.nan) != 0
    group = np.empty_like(order)
    number = differs.reshape(-1).cumsum().reshape(order.shape) - 1
    np.put_along_axis(group, order, number, -1)
    place = np.moveaxis(group, -1, axis)
    counts = np.bincount(place.reshape(-1))
    sums = scatter_add(x / counts[place], index=place, shape=counts.shape)
    means = gather(sums, index=place)
    return stop_gradient(x) + (means - stop_gradient(means))
