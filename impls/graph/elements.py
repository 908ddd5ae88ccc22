"""Single elements of a graph: their values, and the elements that they come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.graph.engine import Array, Node, computed, computing
from gradwatch.impls.graph.parts import Places

#: An input of a node, flat positions there, and the slopes of elements by these.
Source = tuple[Node, Places, Any]

#: From so many values a place on, those alone in theirs are not looked for.
CROWDED = 4
#: Primitives that only move elements: along axes, and by an index.
MOVED = frozenset(("reshape", "permute_dims", "broadcast_to"))
INDEXED = frozenset(("gather", "scatter_add"))


def operation(node: Node) -> str:
    """The name of a node's primitive; empty for a leaf."""
    return node.primitive.name if node.primitive else ""


def soon_computed(node: Node) -> bool:
    """Whether an element of a node follows from one element of each input."""
    step = node.primitive
    return step is not None and (step.elementwise or step.name in MOVED)


class Elements:
    """Values of elements at flat positions, and where these come from.

    Both are cached: the same positions serve all nodes of a shape, and are known by
    identity.
    """

    def __init__(self) -> None:
        # With the places, so that no other array has their identity.
        self._values: dict[tuple[Node, int], tuple[Array, Places]] = {}
        self._behind: dict[tuple[Any, ...], tuple[Places, Places]] = {}

    def at(self, node: Node, places: Places) -> Array:
        """The values of a node in float64; computed again, if they were dropped."""
        key = node, id(places)
        if key not in self._values:
            if node.held or not soon_computed(node):
                value: Any = node.value
                value = value.reshape(-1) if value.flags.c_contiguous else value.flat
                found = value[places]
            else:
                inputs, moves = self.operands(node, places), operation(node) in MOVED
                found = inputs[0] if moves else computed(node, inputs)
            self._values[key] = np.asarray(found, np.float64), places
        return self._values[key][0]

    def operands(self, node: Node, places: Places) -> list[Array]:
        """The values in the inputs of an elementwise primitive or a move along axes."""
        there = (self._came_from(node, source, places) for source in node.inputs)
        return [*map(self.at, node.inputs, there)]

    def sources(self, node: Node, places: Places) -> Iterator[Source]:
        """Where elements come from, if each comes from one element of an input."""
        if operation(node) in INDEXED:
            yield from _by_index(node, places)
        elif soon_computed(node):
            there = (self._came_from(node, source, places) for source in node.inputs)
            moves = operation(node) in MOVED
            by = (1.0,) if moves else self._slopes(node, places)
            found = zip(node.inputs, there, by, strict=True)
            yield from (way for way in found if way[2] is not None)

    def _slopes(self, node: Node, places: Places) -> list[Any]:
        """The slopes of an elementwise primitive, which are those of its VJP rule."""
        values = self.at(node, places), *self.operands(node, places)
        typed = map(np.asarray, values, (n.dtype for n in (node, *node.inputs)))
        whole = (np.broadcast_to(v, places.shape) for v in (np.ones(()), *typed))
        assert node.primitive is not None
        with computing(computed):
            given = [Node(None, value=v) for v in whole]
            by = node.primitive.gradient(*given, **node.attributes)
            return [None if slope is None else slope.value for slope in by]

    def _came_from(self, node: Node, source: Node, places: Places) -> Places:
        """Flat positions in an input of elementwise primitives and moves along axes."""
        turned = operation(node) == "permute_dims" and node.ndim > 1
        if operation(node) == "reshape" or (source.shape == node.shape and not turned):
            return places
        axes = node.attributes["axes"] if turned else tuple(range(source.ndim))
        key = source.shape, node.shape, axes, id(places)
        if key not in self._behind:
            like = np.empty(source.shape, bool).transpose(axes)  # a byte an element
            steps = np.broadcast_to(like, node.shape).strides
            at = zip(np.unravel_index(places, node.shape), steps, strict=True)
            there = np.atleast_1d(sum(p * step for p, step in at if step))
            self._behind[key] = there, places
        return self._behind[key][0]


def _by_index(node: Node, places: Places) -> Iterator[Source]:
    """The sources of elements that an index moves; the slope is 0 by all others."""
    batch, index = node.attributes.get("batch", 0), node.attributes["index"]
    width, adds = math.prod(node.shape[batch:]), operation(node) == "scatter_add"
    if adds and index.size > CROWDED * width:
        return  # hardly one is alone, and to look for it takes a while
    row, at = np.divmod(places, width)
    at = (_origins(node) if adds else index).reshape(-1)[at]
    for source in node.inputs:
        size = math.prod(source.shape[batch:])
        inside = (at >= 0) & (at < size)
        if size:
            yield source, np.where(inside, row * size + at, 0), inside * 1.0
        at = at - size


@functools.lru_cache(maxsize=4)
def _origins(node: Node) -> Places:
    """For each place of a scatter_add, which value alone is added there; else -1."""
    index, counts = node.attributes["index"].reshape(-1), terms_of_scatter(node)
    found = np.empty(counts.size + 1, np.intp)  # the last: where -1 leads
    found[index] = np.arange(index.size)
    return np.where(counts.reshape(-1) == 1, found[:-1], -1)


def terms_of_scatter(node: Node) -> NDArray[np.intp]:
    """How many values a scatter_add adds up at each place behind its batch."""
    shape = node.shape[node.attributes.get("batch", 0) :]
    counts = np.zeros(math.prod(shape) + 1, np.intp)  # the last: where -1 leads
    np.add.at(counts, node.attributes["index"], 1)
    return counts[:-1].reshape(shape)
