"""How large or small a partial product may become in another order of operations.

2 x dy may be computed as (2 x) dy or as x (2 dy), and both are honest: where dy is near
the end of the range and x is small, the second overflows though the formula does not.
So it is with a quotient, a square, and a factor that is taken out of a sum, as rstd^3
in PyTorch's layer_norm. The largest partial product of some factors is the product of
those above 1. That is the *peak* of a product, in whatever order it is evaluated. An
infinity is excused where the peak lies beyond the range, and nowhere else. The smallest
partial product is that of the factors below 1: where it underflows, digits are lost
that the formula keeps (harness/judging/excuses/imprecision.py).

A peak follows from the peaks of the factors, and so on back to values that are no
product: inputs, results of functions, of matrix products and of choices. Nobody takes
a factor through one of these, and there a peak is the value's own magnitude. But
matrix products of inputs alone, such as a^T W b, may be taken in any order. Peaks are
exponents: log2 of the magnitude, at least 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.precisions import Precision
from gradwatch.harness.judging.rounding.analysis import ERROR, moves
from gradwatch.harness.judging.rounding.errors import computed, copied, operation
from gradwatch.impls.graph import Node

Array = NDArray[Any]
Exponents = NDArray[np.float64]
Mask = NDArray[np.bool_]

#: Sums, whose terms may share a factor. What only moves is a sum of one term.
_ADDED = frozenset(
    ("add", "subtract", "sum", "sum_to", "cumulative_sum", "scatter_add")
)


@dataclass(frozen=True)
class Peaks:
    """How large and how small the partial products of every node may be.

    Attributes:
        step: The precision in which they are computed.
        above: log2 of the largest, of the node's shape.
        below: -log2 of the smallest, likewise; of a matrix product of inputs alone it
            is log2 of the sum of the terms' reciprocals, which is hardly more.
    """

    step: Precision
    above: dict[Node, Exponents] = field(default_factory=dict)
    below: dict[Node, Exponents] = field(default_factory=dict)

    def overflow(self, node: Node) -> Mask:
        """Where some partial product may be rounded to infinity."""
        beyond: Mask = self.above[node] > self.step.overflow
        return beyond

    def underflow(self, node: Node) -> Mask:
        """Where some partial product is at most the smallest normal number."""
        lost: Mask = self.below[node] >= -self.step.least
        return lost


def peaks(order: Iterable[Node], step: Precision) -> Peaks:
    """The peak of every node, and that of its reciprocal.

    What is infinite or nan itself counts as 1: what follows from it is no matter of
    order. A precision with the same largest number gives the same exponents.

    Args:
        order: The nodes, each after its inputs.
        step: The precision in which each step is computed.
    """
    found = Peaks(step)
    above, below = found.above, found.below
    products: set[Node] = set()  # of inputs alone
    with np.errstate(all="ignore"):
        for node in order:
            above[node], below[node] = _peak(node, above, below)
            if _multiplies(node) and products.issuperset(node.inputs):
                products.add(node)
                if operation(node) == "matmul":
                    large = [above[source] for source in node.inputs]
                    small = [_present(source, below[source]) for source in node.inputs]
                    above[node] = np.maximum(above[node], _contracted(*large))
                    below[node] = np.maximum(below[node], _contracted(*small))
    return found


def cancels(value: Array, size: Array) -> Mask:
    """Where terms whose magnitudes add up to `size` have both signs.

    That is, where more is missing than half of the digits of float64.
    """
    mixed: Mask = np.abs(value) < size * (1 - np.finfo(float).eps ** 0.5)
    return mixed


def magnitudes(order: Iterable[Node], *, lost: bool = False) -> dict[Node, Array]:
    """What each node's value were, had all terms of sums and products the same sign.

    Other functions give their own magnitude, as in the peaks. So does, where only what
    is `lost` counts, all of which something is left: more than half of the digits of
    float64.
    """
    sizes: dict[Node, Array] = {}
    for node in order:
        name = operation(node)
        terms = [sizes[source] for source in node.inputs]
        if name in _ADDED:
            sizes[node] = np.abs(_added(node, terms))
        elif name == "divide":  # the divisor's terms are not its own
            sizes[node] = np.abs(terms[0] / node.inputs[1].value)
        elif name and _multiplies(node):
            sizes[node] = np.abs(computed(node, *terms))
        else:
            sizes[node] = np.abs(node.value)
        if lost:
            size, left = sizes[node], np.abs(node.value)
            gone = left <= np.finfo(float).eps ** 0.5 * size
            sizes[node] = np.where(gone, size, left)
    return sizes


def _added(node: Node, terms: Sequence[Array]) -> Array:
    """The sum of all terms, also of those that the node subtracts."""
    terms = [term.astype(np.longdouble) for term in terms]
    if operation(node) == "subtract":
        return np.asarray(terms[0] + terms[1])
    return computed(node, *terms)


def _multiplies(node: Node) -> bool:
    """Whether a node is an input, or a product or a move of its inputs."""
    name = operation(node)
    return name in ("", "multiply", "matmul", "negative") or ERROR[name] is copied


def _contracted(a: Exponents, b: Exponents) -> Exponents:
    """The exponents of a matrix product of magnitudes whose exponents are given."""
    largest = [float(np.max(e, initial=-1e300)) for e in (a, b)]  # where all are zero
    total = np.exp2(a - largest[0]) @ np.exp2(b - largest[1])
    exponent = np.log2(total) + sum(largest)
    return np.where(np.isfinite(exponent), exponent, 0.0)


def _present(node: Node, exponents: Exponents) -> Exponents:
    """Exponents of what is there: -inf where a node is zero."""
    return np.where(node.value == 0, -np.inf, exponents)


def _peak(
    node: Node,
    above: dict[Node, Exponents],
    below: dict[Node, Exponents],
) -> tuple[Exponents, Exponents]:
    """Peaks of a node and of its reciprocal."""
    name = operation(node)
    up, down = ([of[source] for source in node.inputs] for of in (above, below))
    if name == "multiply":
        return up[0] + up[1], down[0] + down[1]
    if name == "divide":
        return up[0] + down[1], down[0] + up[1]
    if name == "square":
        return 2 * up[0], 2 * down[0]
    if name in ("negative", "abs", "stop_gradient"):
        return up[0], down[0]
    own = _own(node)
    if name == "where":
        chosen = node.inputs[0].value
        return np.where(chosen, up[1], up[2]), np.where(chosen, down[1], down[2])
    if name in _ADDED:
        pairs = zip(node.inputs, down, strict=True)
        shared = [_present(source, -exponent) for source, exponent in pairs]
        least = np.maximum(own[1], -_total(node, shared))
        return np.maximum(_total(node, up), 0), least
    if moves(node):
        moved = (computed(node, *exponents) for exponents in (up, down))
        above_one, below_one = (np.maximum(exponent, 0) for exponent in moved)
        return above_one, below_one
    if name == "matmul":
        a, b = (np.abs(source.value) for source in node.inputs)
        return np.maximum(_log2(a @ b), 0), own[1]
    return own


def _own(node: Node) -> tuple[Exponents, Exponents]:
    """Peaks of a node and of its reciprocal by its own magnitude alone."""
    exponent = _log2(np.abs(node.value))
    return np.maximum(exponent, 0), np.maximum(-exponent, 0)


def _log2(size: NDArray[Any]) -> Exponents:
    """log2 of a magnitude; 0 of what is zero, infinite or not a number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.log2(size).astype(np.float64)
    return np.where(np.isfinite(exponent), exponent, 0.0)


def _total(node: Node, exponents: list[Exponents]) -> Exponents:
    """The exponent of a sum of magnitudes whose exponents are given; 0 of no terms.

    Of the negated exponents below 1 it is what the terms' smallest partial products add
    up to: a factor that is taken out of a sum is in all terms that are not zero.
    """
    if operation(node) in ("add", "subtract"):
        exponent = np.logaddexp2(*exponents)
        return np.where(np.isfinite(exponent), exponent, 0.0)
    largest = max((float(e.max()) for e in exponents if e.size), default=0.0)
    largest = max(largest, -1e300)  # where all terms are zero
    terms = [np.exp2(e.astype(np.longdouble) - largest) for e in exponents]
    exponent = (np.log2(_added(node, terms)) + largest).astype(np.float64)
    return np.where(np.isfinite(exponent), exponent, 0.0)
