"""Samples of a graph: running errors of some elements, at a fraction of the cost.

A sample follows some places of each axis as a part does, but only some terms of a sum:
each stands for several. It has the values of the whole, and its running errors are an
estimate.
"""

from __future__ import annotations

import functools
from typing import Any

from gradwatch.harness.judging.rounding.analysis import RULES, At, Error, Table, terms
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.parts import Box, Parts, cut_of

#: Elements of the largest tensor in a sample.
PLACES = 1024


class Sample(Parts):
    """Parts at some places of each axis: the same for all axes of one length."""

    def __init__(self, axes: int) -> None:
        """Choose how many places each axis has, for tensors of at most `axes` axes."""
        super().__init__(round(PLACES ** (1 / max(axes, 1))))
        self._counts: dict[Node, float] = {}

    def of(self, node: Node) -> Node:
        """The sample of a node."""
        return self.part(node, tuple(map(self.terms, node.shape)))

    def summed(
        self, node: Node, box: Box, inputs: tuple[Node, ...], attributes: Any
    ) -> Node:
        """The part of a sum or matrix product, with the value that all terms give."""
        part = Node(node.primitive, inputs, attributes, cut_of(node.value, box))
        self._counts[part] = terms(node) / max(terms(part), 1)
        return part

    def rules(self) -> Table:
        """Rules for the running errors of sums, estimated from the terms taken."""

        def error(name: str, at: At) -> Error:
            once = at.v if at.sums != 1 else 0.0  # the rounding of the result
            return once + self._counts[at.node] * (RULES[name].error(at) - once)

        names = ("sum", "sum_to", "matmul")
        return {name: functools.partial(error, name) for name in names}
