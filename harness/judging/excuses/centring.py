"""Values centred by cancellation: where mathematically equal algorithms differ.

Subtracting a mean that is large beside what is left, as batch_norm and layer_norm do on
shifted or constant rows, leaves mostly the rounding error of the mean. What becomes of
it depends on the algorithm: one that centres once more is immune to it, one that does
not is exposed, and both are honest. The spread knows one algorithm, and says nothing of
what depends on such values; the bound, which adds magnitudes, holds for both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.analysis import ERROR, unmoved
from gradwatch.harness.judging.rounding.errors import copied, terms
from gradwatch.harness.judging.rounding.thresholds import ALWAYS
from gradwatch.impls.graph import Node

Mask = NDArray[np.bool_]

#: Mean over what is left of it. A variance in one pass loses the square of this: up to
#: here that is within the limit.
LOSS = ALWAYS**0.5


def exposed(order: Iterable[Node]) -> dict[Node, Mask]:
    """Elements that depend on a centred value that is mostly cancelled."""
    marked: dict[Node, Mask] = {}
    with np.errstate(all="ignore"):
        for node in order:
            if node.primitive is None or node.value.dtype.kind != "f":
                continue
            marks = [marked.get(source) for source in node.inputs]
            mask = (
                _passed_on(node, marks) if any(m is not None for m in marks) else None
            )
            own = _cancelled(node)
            if own is not None:
                mask = own if mask is None else mask | own
            if mask is not None and mask.any():
                marked[node] = mask
    return marked


def _cancelled(node: Node) -> Mask | None:
    """Rows from which their own mean was subtracted, where it is large beside the rest.

    Nothing else is a centring: another operand has no algorithm that leaves it out.
    """
    assert node.primitive is not None
    if node.primitive.name != "subtract":
        return None
    source, mean = node.inputs
    if not node.size or source.size < node.size or not _is_mean(mean, source):
        return None
    axes = copied_axes(mean, node)
    left = np.max(np.abs(node.value), axis=axes, keepdims=True)
    lost = np.max(np.abs(source.value), axis=axes, keepdims=True) > LOSS * left
    return np.broadcast_to(lost, node.shape) if lost.any() else None


def _is_mean(node: Node, source: Node) -> bool:
    """Whether a node is a sum over a source, times a scalar."""
    source = unmoved(source)
    while (node := unmoved(node)).primitive is not None:
        name, factors = node.primitive.name, node.inputs[1:]
        if name in ("sum", "sum_to"):
            return unmoved(node.inputs[0]) is source
        if name not in ("multiply", "divide") or factors[0].size != 1:
            return node is source
        node = node.inputs[0]
    return node is source


def copied_axes(common: Node, result: Node) -> tuple[int, ...]:
    """The axes along which an operand is the same for all elements of the result."""
    source = common
    if source.primitive is not None and source.primitive.name == "broadcast_to":
        source = source.inputs[0]
    shape = (1,) * (result.ndim - source.ndim) + source.shape
    pairs = enumerate(zip(shape, result.shape, strict=True))
    return tuple(i for i, (have, want) in pairs if have != want)


def _passed_on(node: Node, marks: list[Any]) -> Mask:
    """Elements that depend on marked elements of the inputs."""
    assert node.primitive is not None
    name = node.primitive.name
    inputs = [
        np.zeros(s.shape, bool) if m is None else m
        for s, m in zip(node.inputs, marks, strict=True)
    ]
    if name == "matmul":
        rows = inputs[0].any(axis=-1, keepdims=True)
        return rows | inputs[1].any(axis=-2, keepdims=True) | np.zeros(node.shape, bool)
    if ERROR[name] is copied or name in (
        "sum",
        "sum_to",
        "cumulative_sum",
        "scatter_add",
    ):
        numbers = (mask.astype(np.float64) for mask in inputs)
        moved: Mask = (
            np.asarray(node.primitive.compute(*numbers, **node.attributes)) > 0
        )
        return moved
    every: Mask = np.zeros(node.shape, bool)
    for mask in inputs:
        fits = terms(node) == 1 and mask.ndim <= node.ndim
        fits = fits and np.broadcast_shapes(mask.shape, node.shape) == node.shape
        every = every | (mask if fits else mask.any())
    return every
