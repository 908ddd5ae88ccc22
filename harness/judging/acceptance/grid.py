"""Running errors of some thousand elements, from which vacuous tensors are told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.acceptance.extents import RULES, Extent, Unknown, View
from gradwatch.harness.judging.acceptance.least_spread import MOVED
from gradwatch.harness.judging.rounding.errors import terms
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]

#: Of a leaf and of these all elements have the E of the whole.
WHOLE = ("", "gather", "scatter_add", "pick", "cumulative_sum")
#: Elements of the largest tensor that are on a grid.
PLACES = 1024


@functools.lru_cache(maxsize=256)  # to make a generator takes as long as some passes
def _chosen(n: int, most: int) -> Array:
    """Some places of an axis; always the same ones."""
    rng = np.random.default_rng(n)
    few = np.sort(rng.choice(n, most, replace=False)) if n > most else np.arange(n)
    few.flags.writeable = False
    return few


class Grid:
    """Magnitudes and E of the elements of nodes on a grid: some places of each axis.

    Axes of one length have the same places, so that what belongs together stays so. A
    sum's E is that of its terms on the grid, times how many terms each stands for.
    """

    def __init__(
        self,
        axes: int,
        extent: Callable[[Node], Extent],
        reach: float,
        tiny: float,
    ) -> None:
        """`axes` is the number of the largest tensor's; for the others see `View`."""
        self.extent, self.reach, self.tiny = extent, reach, tiny
        #: Places of an axis: a tensor of as many axes has some thousand on the grid.
        self.most = round(PLACES ** (1 / max(axes, 1)))
        self._known: dict[Node, Extent] = {}
        self._values: dict[Node, Array] = {}
        self._indices: dict[tuple[int, ...], tuple[Array, ...]] = {}

    def at(self, node: Node) -> Extent:
        """Two arrays of the grid's shape.

        Raises:
            Unknown: elements move to where the grid does not follow.
        """
        for behind in graph.topological_order([node], stop=self._known.__contains__):
            self._values[behind] = self._computed(behind)
            most = np.abs(self._values[behind])
            self._known[behind] = Extent(most, self._error(behind, most))
        return self._known[node]

    def values(self, node: Node) -> Array:
        """A node's elements on the grid."""
        shape = node.shape
        if shape and shape not in self._indices:
            self._indices[shape] = np.ix_(*(_chosen(n, self.most) for n in shape))
        return node.value[self._indices[shape]] if shape else node.value

    def _computed(self, node: Node) -> Array:
        """As `values`; from those of the inputs, where whole values may be dropped."""
        primitive = node.primitive
        name = primitive.name if primitive else ""
        inputs = [self._values[source] for source in node.inputs]
        if name in MOVED:
            return self._moved(name, node, inputs[0])
        if primitive and primitive.elementwise:
            return np.asarray(primitive.compute(*inputs, **node.attributes))
        return self.values(node)

    def _shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(min(n, self.most) for n in shape)

    def _error(self, node: Node, most: Array) -> Array:
        name = node.primitive.name if node.primitive else ""
        shape = most.shape
        if name in WHOLE:
            error = self.extent(node).error
            if self._chosen(node):  # what was not chosen is exactly zero
                return np.where(most == 0, 0.0, error)
            return np.full(shape, error)
        inputs = [self._known[source] for source in node.inputs]
        if name in MOVED:
            return self._moved(name, node, inputs[0].error)
        if name in ("sum", "sum_to"):
            (a,) = inputs
            terms = node.inputs[0].size / max(node.size, 1)
            reached = self._reduced(node, a.error + a.most)
            reached *= terms * reached.size / max(a.most.size, 1)
            return reached
        if name == "matmul":  # as a sum
            a, b = inputs
            cross = a.most @ (b.error + b.most) + a.error @ b.most
            cross += self.reach * (a.error @ b.error)
            return np.asarray(cross * (node.inputs[0].shape[-1] / a.most.shape[-1]))
        if name == "max":
            return self._reduced(node, inputs[0].error)
        given = [self._values[source] for source in node.inputs]
        at = node, self._values[node], inputs, most, self.reach, self.tiny, given
        view = View(*at)
        error = np.asarray(RULES[name](view))
        return error if error.shape == shape else np.broadcast_to(error, shape)

    def _chosen(self, node: Node) -> bool:
        """Whether elements only moved from products with weights that are certain."""
        while node.primitive and node.primitive.name in (*MOVED, "scatter_add"):
            if terms(node) > 1:
                return False
            (node,) = node.inputs
        if node.primitive is None or node.primitive.name != "multiply":
            return False
        weight = node.inputs[1]
        kind = weight.primitive.name if weight.primitive else ""
        return kind in ("pick", "share") and self.extent(weight).error == 0

    def _reduced(self, node: Node, terms: Array) -> Array:
        assert node.primitive is not None
        attributes = dict(node.attributes)
        if "shape" in attributes:
            attributes["shape"] = self._shape(attributes["shape"])
        return np.asarray(node.primitive.compute(terms, **attributes))

    def _moved(self, name: str, node: Node, array: Array) -> Array:
        shape = self._shape(node.shape)
        if name == "permute_dims":
            turned: Array = np.transpose(array, node.attributes["axes"])
            return turned
        if name == "broadcast_to":
            return array if array.shape == shape else np.broadcast_to(array, shape)
        lengths = ([n for n in one.shape if n > 1] for one in (node, *node.inputs))
        if next(lengths) != next(lengths):
            raise Unknown
        return array.reshape(shape)
