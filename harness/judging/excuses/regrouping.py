"""How large or small a partial product may become in another order of operations.

2 x dy may be computed as (2 x) dy or as x (2 dy), and the second may overflow though
the formula does not. So it is with a quotient, a square, and a factor that is taken out
of a sum, as rstd^3 in PyTorch's layer_norm. The largest partial product of some factors
is the product of those above 1, the *peak*: an infinity is excused where it lies beyond
the range. The smallest is that of the factors below 1: where it underflows, digits are
lost that the formula keeps (imprecision.py).

A peak follows from the peaks of the factors, back to values that are no product, where
it is the value's own magnitude. But matrix products of inputs alone, such as a^T W b,
may be taken in any order. Peaks are exponents: log2 of the magnitude, at least 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.precisions import Array, Mask, Precision
from gradwatch.harness.judging.rounding.analysis import ERROR, moves
from gradwatch.harness.judging.rounding.errors import computed, copied, operation
from gradwatch.impls.graph import Node

Exponents = NDArray[np.float64]

#: Sums, whose terms may share a factor. What only moves is a sum of one term.
_ADDED = frozenset(
    ("add", "subtract", "sum", "sum_to", "cumulative_sum", "scatter_add")
)


Ends = tuple[Exponents, Exponents]


@dataclass(frozen=True)
class Peaks:
    """How large and how small the partial products of every node may be.

    Attributes:
        step: The precision in which they are computed.
        ends: log2 of the largest, at least 0, and of the smallest, at most 0, of the
            node's shape. Of a matrix product of inputs alone the smallest is that of
            the sum of the terms' reciprocals, which is hardly less.
    """

    step: Precision
    ends: dict[Node, Ends] = field(default_factory=dict)

    def overflow(self, node: Node) -> Mask:
        """Where some partial product may be rounded to infinity."""
        return np.asarray(self.ends[node][0] > self.step.overflow)

    def underflow(self, node: Node) -> Mask:
        """Where some partial product is at most the smallest normal number."""
        return np.asarray(self.ends[node][1] <= self.step.least)


def peaks(order: Iterable[Node], step: Precision) -> Peaks:
    """The ends of every node's partial products.

    What is infinite or nan itself counts as 1: what follows from it is no matter of
    order. Each step is computed in the precision `step`.
    """
    found = Peaks(step)
    products: set[Node] = set()  # of inputs alone
    with np.errstate(all="ignore"):
        for node in order:
            given = [found.ends[source] for source in node.inputs]
            most, least = _ends(node, given)
            if _multiplies(node) and products.issuperset(node.inputs):
                products.add(node)
                if operation(node) == "matmul":
                    large, small = zip(*given, strict=True)
                    most = np.maximum(most, _contracted(*large))
                    pairs = zip(node.inputs, small, strict=True)
                    there = _contracted(*(_terms(s, -e) for s, e in pairs))
                    least = np.minimum(least, -there)
            found.ends[node] = most, least
    return found


def cancels(value: Array, size: Array) -> Mask:
    """Where terms whose magnitudes add up to `size` have both signs.

    That is, where more is missing than half of the digits of float64.
    """
    return np.asarray(np.abs(value) < size * (1 - np.finfo(float).eps ** 0.5))


def magnitudes(order: Iterable[Node], *, lost: bool = False) -> dict[Node, Array]:
    """What each node's value were, had all terms of sums and products the same sign.

    Other functions give their own magnitude. So does, where only what is `lost` counts,
    all of which more than half of the digits of float64 are left.
    """
    sizes: dict[Node, Array] = {}
    for node in order:
        name = operation(node)
        terms = [sizes[source] for source in node.inputs]
        if name in _ADDED:
            sizes[node] = np.abs(_added(node, terms))
        elif name == "divide":  # the divisor's terms are not its own
            sizes[node] = np.abs(terms[0] / node.inputs[1].value)
        elif name == "where":
            sizes[node] = np.where(node.inputs[0].value, *terms[1:])
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


def _terms(node: Node, exponents: Exponents) -> Exponents:
    """Exponents of what is there: -inf where a node is zero."""
    return np.where(node.value == 0, -np.inf, exponents)


def _ends(node: Node, given: Sequence[Ends]) -> Ends:
    """The largest and the smallest partial product of a node's factors."""
    name, own = operation(node), _log2(np.abs(node.value))
    alone = np.maximum(own, 0), np.minimum(own, 0)
    if name == "multiply":
        (a, c), (b, d) = given
        return a + b, c + d
    if name == "divide":
        (a, c), (b, d) = given
        return a - d, c - b
    if name == "square":
        return 2 * given[0][0], 2 * given[0][1]
    if name in ("negative", "abs", "stop_gradient"):
        return given[0]
    if name == "matmul":
        a, b = (np.abs(source.value) for source in node.inputs)
        return np.maximum(_log2(a @ b), 0), alone[1]
    large, small = ([ends[i] for ends in given] for i in (0, 1))
    if name == "where":
        chosen = node.inputs[0].value
        return np.where(chosen, *large[1:]), np.where(chosen, *small[1:])
    if name in _ADDED:
        shared = [_terms(s, e) for s, e in zip(node.inputs, small, strict=True)]
        least = np.minimum(alone[1], _total(node, shared))
        return np.maximum(_total(node, large), 0), least
    if moves(node):
        most, least = computed(node, *large), computed(node, *small)
        return np.maximum(most, 0), np.minimum(least, 0)
    return alone


def _log2(size: Array) -> Exponents:
    """log2 of a magnitude; 0 of what is zero, infinite or not a number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        exponent = np.log2(size).astype(np.float64)
    return np.where(np.isfinite(exponent), exponent, 0.0)


def _total(node: Node, exponents: list[Exponents]) -> Exponents:
    """The exponent of a sum of magnitudes whose exponents are given; 0 of no terms.

    Of the smallest partial products it is what they add up to: a factor that is taken
    out of a sum is in all terms that are not zero.
    """
    if operation(node) in ("add", "subtract"):
        exponent = np.logaddexp2(*exponents)
        return np.where(np.isfinite(exponent), exponent, 0.0)
    largest = max((float(e.max()) for e in exponents if e.size), default=0.0)
    largest = max(largest, -1e300)  # where all terms are zero
    terms = [np.exp2(e.astype(np.longdouble) - largest) for e in exponents]
    exponent = (np.log2(_added(node, terms)) + largest).astype(np.float64)
    return np.where(np.isfinite(exponent), exponent, 0.0)
