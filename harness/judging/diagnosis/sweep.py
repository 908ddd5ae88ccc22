"""A gradient's graph, evaluated with edits: what a mistaken backward would return.

A gradient is linear in its cotangents. So of every node that depends on them it is
known, by one more sweep through the gradient's graph, what a change of its value does
to a random projection of each tensor: thousands of edits are weighed by a few dot
products each, and only what fits the projections is evaluated in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.orders import is_second
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

if TYPE_CHECKING:
    from gradwatch.harness.judging.diagnosis.edits import Edit

Array = NDArray[Any]
At = Callable[[Node], Array]
Make = Callable[[At], Array]
Tensors = Mapping[str, Array]
#: Random projections of a tensor by which edits are weighed.
PROBES = 4


class Sweep:
    """The graph of a gradient, and who made its nodes.

    Attributes:
        tensors: Nodes of what came back by name; `ends` the other way round.
        inputs: Leaves by name.
        outputs, cotangents: Nodes.
        parts: Of which node each of these has some elements, if not all.
        names: Of inputs, cotangents and ends, whole.
        known: The nodes that have names.
        order: All nodes, each after its inputs; `place` says where each stands.
        forward: Nodes that the outputs need.
        flowing: Nodes that depend on a cotangent, in order; `flows` is their set.
    """

    def __init__(self, build: Callable[[], Mapping[str, Node]], ties: str) -> None:
        with graph.recording() as record, graph.ties(ties):
            nodes = build()
        self.record = record
        # A node of its own for each: what befalls it befalls no other.
        same = graph.PRIMITIVES["reshape"]
        self.tensors = {
            name: Node(same, (node,), {"shape": node.shape})
            for name, node in nodes.items()
        }
        self.ends = {node: name for name, node in self.tensors.items()}
        self.second = any(map(is_second, nodes))
        leaves = record.inputs[-len(nodes) :] if self.second else record.inputs
        names = (n.partition("d")[2] for n in record.names or nodes)
        self.inputs = dict(zip(names, leaves, strict=False))
        # Sets by insertion: `in` of a tuple would compare nodes, which builds nodes.
        given = dict.fromkeys(leaves)  # of a second order the first one's cotangents
        pairs = [(y, dy) for y, dy in record.outputs if dy not in given]
        outputs, cotangents = map(dict.fromkeys, zip(*pairs, strict=True))
        self.names = {node: name for name, node in self.inputs.items()} | self.ends
        for i, dy in enumerate(cotangents):
            name = "v" if self.second else "dy"
            self.names[dy] = f"{name}{i}" if len(cotangents) > 1 else name
        self.parts, ends = record.parts, [*self.tensors.values()]
        self.order = graph.topological_order([*(() if self.parts else outputs), *ends])
        whole = {n: self.parts.get(n, n) for n in self.order}
        forward = {*graph.topological_order(outputs)}
        self.forward = forward | {n for n, w in whole.items() if w in forward}
        self.inputs = {self.names[w]: n for n, w in whole.items() if w in given}
        self.outputs, self.cotangents = (
            dict.fromkeys(n for one in nodes for n, w in whole.items() if w is one)
            for nodes in (outputs, cotangents)
        )
        self.place = {n: i for i, n in enumerate(self.order)}
        self.known = {*self.inputs.values(), *self.outputs}
        self.flows = {*self.cotangents, *self.ends}
        for node in self.order:
            if not self.flows.isdisjoint(node.inputs):
                self.flows.add(node)
        self.flowing = [n for n in self.order if n in self.flows]
        graph.forward(self.order)
        self.values: dict[Node, Array] = {n: n.value for n in self.order}
        self._behind = {
            n for n in self.order if n in self.flows or n not in self.forward
        }

    def gradients(
        self, values: Mapping[Node, Array], edit: Edit | None = None
    ) -> dict[str, Array]:
        """The gradients at these values, or what an edit makes of them."""
        values = self.run(values, edit.edits, edit.saved) if edit else values
        return {name: values[node] for name, node in self.tensors.items()}

    def near(self, seed: int) -> dict[Node, Array]:
        """All values at other numbers near by, and with other cotangents."""
        rng, new = np.random.default_rng(seed), dict[Node, Array]()
        for leaf in (*self.inputs.values(), *self.cotangents):
            if leaf.value.dtype.kind == "f":
                noise = rng.standard_normal(leaf.shape)
                other = noise if leaf in self.flows else leaf.value * (1 + 0.1 * noise)
                new[leaf] = other.astype(leaf.dtype)
        return self.run(self.values, leaves=new)

    def run(
        self,
        base: Mapping[Node, Array],
        edits: Mapping[Node, Make] | None = None,
        saved: Mapping[Node, Make] | None = None,
        leaves: Mapping[Node, Array] | None = None,
    ) -> dict[Node, Array]:
        """All values with edits of nodes, or of what the backward reads of them."""
        new, edits, saved = {**base, **(leaves or {})}, edits or {}, saved or {}
        touched, kept = set(leaves or ()), dict[Node, Array]()

        def at_back(node: Node) -> Array:
            return kept[node] if node in kept else new[node]

        with np.errstate(all="ignore"):
            for node in self.order:
                back = node in self._behind
                look = at_back if back else new.__getitem__
                stale = not touched.isdisjoint(node.inputs)
                stale = stale or (back and not kept.keys().isdisjoint(node.inputs))
                if stale:
                    new[node] = graph.computed(node, [look(n) for n in node.inputs])
                if node in edits:
                    new[node] = np.asarray(edits[node](look))
                if stale or node in edits:
                    touched.add(node)
                if node in saved:
                    kept[node] = np.asarray(saved[node](new.__getitem__))
        return new

    def weights(self, tensor: str, scale: Array) -> dict[Node, Array]:
        """By flowing node how projections of a tensor depend on it: float64, flat.

        The projections are of the tensor times a scale with the signs of `signs`.
        """
        stacked, goal = dict[Node, list[Array]](), self.tensors[tensor]
        for along in signs(goal.shape):
            found = graph.gradient([goal], [along * scale], self.flowing)
            graph.forward(part for part in found if part is not None)
            for node, part in zip(self.flowing, found, strict=True):
                if part is not None:
                    flat = part.value.astype(np.float64).ravel()
                    stacked.setdefault(node, []).append(flat)
        return {node: np.stack(rows) for node, rows in stacked.items()}


def signs(shape: tuple[int, ...]) -> list[Array]:
    """Random signs of each projection, the same every time."""
    rng = np.random.default_rng(0)
    return [rng.choice([-1.0, 1.0], size=shape) for _ in range(PROBES)]
