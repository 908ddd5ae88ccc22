"""What running errors are made of: E of every node, and what a rule of it sees.

E counts, in units of the unit roundoff of an arithmetic, how far an honest
implementation may land from a node's value. harness/judging/rounding carries it
through a graph; the rules stand in the modules beside it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.precisions import Arithmetic, Array, Mask
from gradwatch.harness.judging.rounding.thresholds import ALWAYS, EACH_ROOT
from gradwatch.impls.graph import Node

Error = NDArray[np.float64]
Table = dict[str, Callable[["At"], Error]]

#: Of all elements. The methods of small arrays take twice as long.
smallest = functools.partial(np.minimum.reduce, axis=None)
largest = functools.partial(np.maximum.reduce, axis=None)


def operation(node: Node) -> str:
    """Name of the primitive that computes a node; "" of a leaf."""
    return node.primitive.name if node.primitive else ""


def computed(node: Node, *arrays: Array) -> Array:
    """What the primitive of a node makes of other arrays."""
    assert node.primitive is not None
    return np.asarray(node.primitive.compute(*arrays, **node.attributes))


def everywhere(mask: Mask) -> bool:
    """Whether all elements are true."""
    return bool(np.count_nonzero(mask) == mask.size)


@dataclass(frozen=True)
class Errors:
    """Of every node |v| and E, in units of the unit roundoff of `arithmetic`.

    The error of nodes in `exact` cancels in the result; `peaks` holds the largest E of
    a node, where it is finite.
    """

    arithmetic: Arithmetic
    limit: float
    rules: Table
    sizes: dict[Node, Error]
    errors: dict[Node, Error]
    exact: frozenset[Node] = frozenset()
    peaks: dict[Node, float] = field(default_factory=dict, init=False)

    @functools.cached_property
    def reach(self) -> float:
        """The factor by which E becomes the deviation that the judge allows."""
        return self.limit * self.arithmetic.roundoff


class At:
    """What a rule sees: magnitudes a, b of the inputs, their E, the node's own |v|.

    `u` times E is the deviation that the judge allows, hence `limit` times `roundoff`;
    `tiny` is the floor of underflow in units of E, and `sums` and `products` are the
    roundoffs inside a sum or matrix product likewise. `inexact` holds the E that are
    not 0 everywhere, else None; `e` is 0 where a node's `own` rounding is asked for,
    and `known` is not.
    """

    def __init__(
        self, node: Node, errors: Errors, carried: list[Error], *, own: bool = False
    ) -> None:
        sizes, inputs = errors.sizes, node.inputs
        self.node, self.v = node, sizes[node]
        self.a, self.b = sizes[inputs[0]], sizes[inputs[-1]]
        self.e, self.known = carried, [errors.errors[source] for source in inputs]
        self.inexact = [
            None if own or errors.peaks.get(source) == 0 else error
            for source, error in zip(inputs, carried, strict=True)
        ]
        self.u, self.arithmetic = errors.reach, errors.arithmetic
        self.roundoff = unit = self.arithmetic.roundoff
        self.tiny = self.arithmetic.step.smallest / unit
        self.sums = self.arithmetic.sums / unit
        self.products = self.arithmetic.products / unit

    @property
    def underflow(self) -> Error | float:
        """A result that is not exactly zero may be flushed to it."""
        if self.v.size and smallest(self.v) > 0:
            return self.tiny
        return np.where((self.a != 0) & (self.b != 0), self.tiny, 0.0)


def longest_reduction(nodes: Iterable[Node]) -> int:
    """The largest number of terms that any sum or product among the nodes adds up."""
    return max(map(terms, nodes), default=1)


def limit_for(reduction: int) -> float:
    """The tolerance, in rounding radii, for sums of up to `reduction` terms.

    The part that grows is for sums that add their terms one by one: their error grows
    faster than that of a blocked sum.
    """
    return ALWAYS + EACH_ROOT * math.sqrt(reduction)


def terms(node: Node) -> int:
    """How many terms each element of a node adds up."""
    count = _TERMS.get(node.primitive.name) if node.primitive else None
    return count(node) if count and node.size else 1


def terms_of_scatter(node: Node) -> NDArray[np.intp]:
    """How many values a scatter_add adds up at each flat position."""
    places = node.attributes["index"]
    return np.bincount(places[places >= 0], minlength=node.size)


_TERMS: dict[str, Callable[[Node], int]] = {
    "matmul": lambda node: node.inputs[0].shape[-1],
    **dict.fromkeys(("sum", "sum_to"), lambda node: node.inputs[0].size // node.size),
    "cumulative_sum": lambda node: int(node.shape[node.attributes["axis"]]),
    "scatter_add": lambda node: int(terms_of_scatter(node).max(initial=1)),
}


def copied(at: At) -> Error:
    """Elements that only move, or are copied, bring their E along."""
    return computed(at.node, *at.e)
