"""A gradient's graph, evaluated with edits: what a mistaken backward would return.

A gradient is linear in its cotangents. So of every node that depends on them it is
known, by one more sweep through the gradient's graph, what a change of its value does
to a random projection of each tensor: thousands of edits are weighed by a few dot
products each, and only what fits the projections is evaluated in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]
At = Callable[[Node], Array]
Make = Callable[[At], Array]
Tensors = Mapping[str, Array]
#: Random projections of a tensor by which edits are weighed.
PROBES = 4


class Sweep:
    """The graph of a gradient, and who made its nodes.

    Attributes:
        tensors: Nodes of the gradients by name.
        forward: Nodes that the outputs need.
        flowing: Nodes of the backward that depend on a cotangent, in order.
        flows: The same, as a set.
        cotangents: Leaves.
        places: Lines of the user's code.
    """

    def __init__(self, build: Callable[[], Mapping[str, Node]], ties: str) -> None:
        with graph.recording() as record, graph.ties(ties):
            nodes = build()
        self.record, count = record, len(record.inputs)
        self.tensors = dict(list(nodes.items())[:count])
        self.inputs = {n[1:]: i for n, i in zip(nodes, record.inputs, strict=False)}
        graph.forward(self.tensors.values())
        self.order = graph.topological_order(self.tensors.values())
        # Sets by insertion: `in` of a tuple would compare nodes, which builds nodes.
        self.outputs = dict.fromkeys(y for y, _ in record.outputs)
        self.cotangents = dict.fromkeys(dy for _, dy in record.outputs)
        self.forward = set(graph.topological_order(self.outputs))
        flowing = set(self.cotangents)
        for node in self.order:
            if not flowing.isdisjoint(node.inputs):
                flowing.add(node)
        self.flowing = [n for n in self.order if n in flowing]
        self.values: dict[Node, Array] = {n: n.value for n in self.order}
        self.flows = flows = set(self.flowing)
        self._behind = {n for n in self.order if n in flows or n not in self.forward}

    def moved(self, leaves: Mapping[Node, Array]) -> Point:
        """At other numbers."""
        return Point(self, self._run(self.values, leaves=leaves))

    def point(self, seed: int) -> Point:
        """The same function at other numbers near by, and with other cotangents."""
        rng, new = np.random.default_rng(seed), dict[Node, Array]()
        for leaf in (*self.inputs.values(), *self.cotangents):
            value = self.values.get(leaf)
            if value is not None and value.dtype.kind == "f":
                noise = rng.standard_normal(value.shape)
                near = value * (1 + 0.1 * noise)
                new[leaf] = (near if leaf not in self.cotangents else noise).astype(
                    value.dtype
                )
        return self.moved(new)

    def here(self) -> Point:
        """At the numbers that were judged."""
        return Point(self, self.values)

    def _run(
        self,
        base: Mapping[Node, Array],
        edits: Mapping[Node, Make] | None = None,
        saved: Mapping[Node, Make] | None = None,
        leaves: Mapping[Node, Array] | None = None,
        within: Set[Node] | None = None,
    ) -> dict[Node, Array]:
        """All values with some edits.

        Args:
            base: The values without.
            edits: New values of nodes.
            saved: New values of nodes as the backward sees them.
            leaves: New values of leaves.
            within: The nodes that see what is saved; all of the backward by default.
        """
        new, edits = dict(base), edits or {}
        touched, kept = set(leaves or ()), dict[Node, Array]()
        new.update(leaves or {})
        behind = self._behind if within is None else within

        def at(node: Node) -> Array:
            return new[node]

        def at_back(node: Node) -> Array:
            return kept[node] if node in kept else new[node]

        with np.errstate(all="ignore"):
            for node in self.order:
                back = node in behind
                look = at_back if back else at
                if node in edits:
                    new[node] = np.asarray(edits[node](look))
                    touched.add(node)
                elif node.primitive and (
                    not touched.isdisjoint(node.inputs)
                    or (back and not kept.keys().isdisjoint(node.inputs))
                ):
                    arrays = [look(n) for n in node.inputs]
                    new[node] = graph.computed(node, arrays)
                    touched.add(node)
                if saved and node in saved:
                    kept[node] = np.asarray(saved[node](at))
        return new

    def weights(self, tensor: str, scale: Array, seed: int = 0) -> dict[Node, Array]:
        """How random projections of a tensor depend on each flowing node.

        Args:
            tensor: Its name.
            scale: Of its shape; the projections are of the tensor times this, with
                random signs.
            seed: Of the signs.

        Returns:
            By node an array (probes, elements) of float64; nodes that do not reach the
            tensor are left out.
        """
        rng, stacked = np.random.default_rng(seed), dict[Node, list[Array]]()
        goal = self.tensors[tensor]
        for _ in range(PROBES):
            signs = rng.choice([-1.0, 1.0], size=goal.shape)
            for node, found in self._transposed(goal, signs * scale).items():
                stacked.setdefault(node, []).append(found)
        return {node: np.stack(rows) for node, rows in stacked.items()}

    def _transposed(self, goal: Node, along: Array) -> dict[Node, Array]:
        """The gradient of sum(goal * along) by each flowing node, flat."""
        flows = self.flows
        reached: dict[Node, Node] = {
            goal: graph.variable(along.astype(goal.value.dtype))
        }
        for node in reversed(self.flowing):
            if node not in reached or node.primitive is None:
                continue
            parts = node.primitive.gradient(
                reached[node], node, *node.inputs, **node.attributes
            )
            for source, part in zip(node.inputs, parts, strict=True):
                if part is not None and source in flows:
                    held = reached.get(source)
                    reached[source] = part if held is None else held + part
        graph.forward(reached.values())
        return {n: v.value.astype(np.float64).ravel() for n, v in reached.items()}


@dataclass
class Point:
    """All values of a sweep at some numbers."""

    sweep: Sweep
    values: Mapping[Node, Array]
    kept: dict[Any, Tensors] = field(default_factory=dict)

    def at(self, node: Node) -> Array:
        """The value of a node."""
        return self.values[node]

    def tensors(
        self,
        edits: Mapping[Node, Make] | None = None,
        saved: Mapping[Node, Make] | None = None,
        within: Set[Node] | None = None,
    ) -> dict[str, Array]:
        """The gradients, with some edits."""
        values = self.values
        if edits or saved:
            values = self.sweep._run(values, edits, saved, within=within)
        return {name: values[node] for name, node in self.sweep.tensors.items()}

