"""What running errors are made of: E of every node, and what a rule of it sees.

E counts, in units of the unit roundoff of an arithmetic, how far an honest
implementation may land from a node's value. harness/judging/rounding carries it
through a graph; the rules stand in the modules beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging.precisions import Arithmetic
from impls.graph import Node

Array = NDArray[Any]
Error = NDArray[np.float64]
Table = dict[str, Callable[["At"], Error]]


@dataclass(frozen=True)
class Errors:
    """Of every node |v| and E, in units of the unit roundoff of `arithmetic`."""

    arithmetic: Arithmetic
    limit: float
    rules: Table
    sizes: dict[Node, Error]
    errors: dict[Node, Error]

    @property
    def reach(self) -> float:
        """The factor by which E becomes the deviation that the judge allows."""
        return self.limit * self.arithmetic.roundoff


class At:
    """What a rule sees: magnitudes a, b of the inputs, their E, the node's own |v|.

    `u` times E is the deviation that the judge allows, hence `limit` roundoffs;
    `tiny` is the floor of underflow in units of E, and `sums` and `products` are the
    roundoffs inside a sum or matrix product likewise.
    """

    def __init__(self, node: Node, errors: Errors, carried: list[Error]) -> None:
        arithmetic = errors.arithmetic
        self.node, self.v = node, errors.sizes[node]
        self.a = errors.sizes[node.inputs[0]]
        self.b = errors.sizes[node.inputs[-1]]
        self.e = carried
        self.u = errors.reach
        self.roundoff = arithmetic.roundoff
        self.arithmetic = arithmetic
        self.tiny = arithmetic.step.smallest / arithmetic.roundoff
        self.sums = arithmetic.sums / arithmetic.roundoff
        self.products = arithmetic.products / arithmetic.roundoff
        least = arithmetic.step.least - arithmetic.step.digits
        self.log_least = math.log(2) * least - 1

    @property
    def underflow(self) -> Error | float:
        """A result that is not exactly zero may be flushed to it."""
        if self.v.size and self.v.min() > 0:
            return self.tiny
        nonzero: Error = (self.a != 0) & (self.b != 0)
        return nonzero * self.tiny


def longest_reduction(nodes: Iterable[Node]) -> int:
    """The largest number of terms that any sum or product among the nodes adds up."""
    return max(map(terms, nodes), default=1)


def terms(node: Node) -> int:
    """How many terms each element of a node adds up."""
    if node.primitive is None or not node.size:
        return 1
    if node.primitive.name == "matmul":
        return node.inputs[0].shape[-1]
    if node.primitive.name in ("sum", "sum_to"):
        return node.inputs[0].size // node.size
    if node.primitive.name == "cumulative_sum":
        return int(node.shape[node.attributes["axis"]])
    if node.primitive.name == "scatter_add":
        return int(terms_of_scatter(node).max(initial=1))
    return 1


def terms_of_scatter(node: Node) -> NDArray[np.intp]:
    """How many values a scatter_add adds up at each flat position."""
    places = node.attributes["index"]
    return np.bincount(places[places >= 0], minlength=node.size)


def copied(at: At) -> Error:
    """Elements that only move, or are copied, bring their E along."""
    assert at.node.primitive is not None
    return np.asarray(at.node.primitive.compute(*at.e, **at.node.attributes))
