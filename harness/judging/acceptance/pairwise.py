"""Sums and matrix products in float64 that do not lose what equal terms lose.

Added up one by one, equal terms round the same way each time, in NumPy as in a kernel
that is judged. A reference must not share that loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.graph import Node
from gradwatch.impls.graph.engine import axes_of

Array = NDArray[Any]

#: Terms of a matrix product that are added up one by one.
TOGETHER = 32


def summed_axes(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Over which axes of an input of this shape a node of `sum` or `sum_to` adds up."""
    if "axis" in node.attributes:
        return axes_of(node.attributes["axis"], len(shape))
    kept = node.attributes["shape"]
    inner = (*[1] * (len(shape) - len(kept)), *kept)
    return tuple(i for i, n in enumerate(inner) if n != shape[i])


def _summed(node: Node, arrays: Sequence[Array | None]) -> Array:
    """A sum in pairs, along whatever axes."""
    (x,) = arrays
    assert x is not None
    axes, shape = summed_axes(node, x.shape), node.attributes.get("shape")
    if shape is None:
        kept = 1 if node.attributes["keepdims"] else None
        lengths = [kept if i in axes else n for i, n in enumerate(x.shape)]
        shape = tuple(n for n in lengths if n is not None)
    for axis in sorted(axes, reverse=True):
        x = _along(x, axis)
    return x.reshape(shape)


def _along(x: Array, axis: int) -> Array:
    """A sum over one axis in pairs; NumPy does that with contiguous numbers only.

    Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.1.
    """
    if axis == x.ndim - 1 and x.flags.c_contiguous:
        return np.add.reduce(x, axis, keepdims=True)
    before = (slice(None),) * axis
    while (n := x.shape[axis]) > 1:
        half = n // 2
        pairs = x[(*before, slice(half))] + x[(*before, slice(half, 2 * half))]
        if n % 2:
            pairs[(*before, slice(1))] += x[(*before, slice(2 * half, None))]
        x = pairs
    return x if x.shape[axis] else np.add.reduce(x, axis, keepdims=True)


def _in_blocks(node: Node, arrays: Sequence[Array | None]) -> Array:
    """A matrix product, some terms at a time."""
    a, b = arrays
    assert a is not None
    assert b is not None
    total = a[..., :TOGETHER] @ b[..., :TOGETHER, :]
    for start in range(TOGETHER, a.shape[-1], TOGETHER):
        part = slice(start, start + TOGETHER)
        total += a[..., part] @ b[..., part, :]
    return np.asarray(total)


CAREFUL: dict[str, Callable[[Node, Sequence[Array | None]], Array]] = {
    "sum": _summed,
    "sum_to": _summed,
    "matmul": _in_blocks,
}
