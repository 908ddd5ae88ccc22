"""Running errors of sums and products of many terms: one rounding of each term.

The limit allows for their number. Where sums are accumulated in a wider type, the
terms' own rounding is that type's, and one rounding of what comes out is added.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwatch.harness.judging.rounding.errors import (
    At,
    Error,
    Table,
    computed,
    terms,
    terms_of_scatter,
)
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.engine import axes_of


def summed_axes(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Over which axes of an input of this shape a node of `sum` or `sum_to` adds up."""
    if "axis" in node.attributes:
        return axes_of(node.attributes["axis"], len(shape))
    kept = node.attributes["shape"]
    inner = (*[1] * (len(shape) - len(kept)), *kept)
    return tuple(i for i, n in enumerate(inner) if n != shape[i])


def _reduction(at: At) -> Error:
    """One rounding of each term's magnitude."""
    if terms(at.node) == 1:
        return computed(at.node, at.e[0])
    if at.sums == 1:
        return computed(at.node, at.e[0] + at.a)
    # Added up in a wider type: one rounding of what comes out.
    return computed(at.node, at.e[0] + at.sums * at.a) + at.v


def _scattered(at: At) -> Error:
    """A copy where at most one value lands, a reduction where several do."""
    node, moved = at.node, computed(at.node, at.e[0])
    several = (terms_of_scatter(node) > 1).reshape(node.shape)
    if not several.any():
        return moved
    added = moved + at.sums * computed(node, at.a)
    if at.sums != 1:
        added = added + at.v
    return np.where(several, added, moved)


def _flushed(a: Error, b: Error, smallest: float) -> Any:
    """What is lost where subnormal inputs are taken for zero.

    So do the bfloat16 products of processors (VDPBF16PS, Intel's SDM, volume 2).
    """
    small_a, small_b = (np.where(x < smallest, x, 0.0) for x in (a, b))
    if not (small_a.any() or small_b.any()):
        return 0.0
    return small_a @ b + a @ small_b


def _matmul(at: At) -> Error:
    (ea, eb), a, b = at.e, at.a, at.b
    rounded: Error = a @ b
    if at.sums != 1 or at.products != 1:
        inside = at.sums + 2 * at.products if at.products > 1 else at.sums
        rounded = inside * rounded + at.v
    rounded += at.tiny * a.shape[-1] * (at.v > 0)
    if at.arithmetic.stored.name == "bfloat16":
        rounded += _flushed(a, b, at.arithmetic.stored.smallest) / at.roundoff
    if not (ea.any() or eb.any()):
        return rounded
    carried: Error = a @ eb + ea @ b + at.u * (ea @ eb)
    return carried + rounded


def _cumulative_sum(at: At) -> Error:
    """As a sum: one rounding of each term's magnitude; the first element is copied."""
    axis = at.node.attributes["axis"]
    error = np.cumsum(at.e[0] + at.sums * at.a, axis=axis)
    if at.sums != 1:
        error += at.v
    alone = (slice(None),) * axis + (slice(0, 1),)
    error[alone] = at.e[0][alone]
    return error


RULES: Table = {
    "sum": _reduction,
    "sum_to": _reduction,
    "matmul": _matmul,
    "scatter_add": _scattered,
    "cumulative_sum": _cumulative_sum,
}
