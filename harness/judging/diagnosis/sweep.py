"""A gradient's graph, evaluated with edits: what a mistaken backward would return.

A gradient is linear in its cotangents. So of every node that depends on them it is
known, by one more sweep through the gradient's graph, what a change of its value does
to a random projection of each tensor: thousands of edits are weighed by a few dot
products each, and only what fits the projections is evaluated in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.orders import is_second
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]
At = Callable[[Node], Array]
Make = Callable[[At], Array]
Edits = Mapping[Node, Make]
AS_IS: Edits = {}


@dataclass(frozen=True)
class Edit:
    """Values of the graph replaced.

    Attributes:
        rank: How far-fetched it is.
        text: Says it; {term} and {rule} are those of the first node it is `about`, {0}
            and {1} the expressions of the others.
        edits: What nodes become.
        plain: It is nothing but a factor before a term.
        where: Comes before the text.
        also: Another edit at once.
    """

    rank: float
    text: str
    about: tuple[Node, ...]
    edits: Edits
    plain: bool = False
    where: str = ""
    also: Edit | None = None


class Sweep:
    """The graph of a gradient, and who made its nodes.

    Attributes:
        ends: Names of what came back by node; `tensors` the other way round.
        inputs: Leaves by name.
        cotangents: Nodes.
        parts: Of which node each of these has some elements, if not all.
        names: Of inputs, cotangents and ends, whole.
        known: The nodes that have names.
        made: Of a node of the backward by which node's rule, for which operand.
        order: All nodes, each after its inputs; `place` says where each stands.
        forward: Nodes that the outputs need.
        flowing: Nodes that depend on a cotangent, the ends first; `flows` is their set.
    """

    def __init__(self, build: Callable[[], Mapping[str, Node]], ties: str) -> None:
        with graph.recording() as record, graph.ties(ties):
            nodes = build()
        self.record = record
        # A node of its own for each: what befalls it befalls no other.
        same = graph.PRIMITIVES["reshape"]
        self.ends = {Node(same, (n,), {"shape": n.shape}): k for k, n in nodes.items()}
        self.tensors = {name: node for node, name in self.ends.items()}
        second = any(map(is_second, nodes))
        leaves = record.inputs[-len(nodes) :] if second else record.inputs
        names = (n.partition("d")[2] for n in record.names or nodes)
        # By dicts: `in` of a tuple would compare nodes, which builds nodes.
        given = dict(zip(leaves, names, strict=False))
        # Of a second order the first one's cotangents are given, too.
        pairs = [(y, dy) for y, dy in record.outputs if dy not in given]
        outputs, cotangents = map(dict.fromkeys, zip(*pairs, strict=True))
        self.names = given | self.ends
        for i, dy in enumerate(cotangents):
            name = "v" if second else "dy"
            self.names[dy] = f"{name}{i}" if len(cotangents) > 1 else name
        self.parts, ends = record.parts, [*self.tensors.values()]
        self.order = graph.topological_order([*(() if self.parts else outputs), *ends])
        whole = {n: self.parts.get(n, n) for n in self.order}
        self.forward = dict.fromkeys(graph.topological_order(outputs))
        self.forward |= {n: None for n, w in whole.items() if w in self.forward}
        self.inputs = {self.names[w]: n for n, w in whole.items() if w in given}
        self.cotangents = dict.fromkeys(
            n for dy in cotangents for n, w in whole.items() if w is dy
        )
        self.place = {n: i for i, n in enumerate(self.order)}
        self.known = {n for n, w in whole.items() if w in given or w in outputs}
        self.flows = {*self.cotangents, *self.ends}
        for node in self.order:
            if not self.flows.isdisjoint(node.inputs):
                self.flows.add(node)
        inner = self.flows - self.ends.keys()
        self.flowing = [*ends, *(n for n in self.order if n in inner)]
        self.made: dict[Node, tuple[Node, int | None]] = {}
        seen = {*self.forward}
        for rule, dy, gradients in record.rules:
            seen.add(dy)
            # What stands between a cotangent and a part was made by the same rule.
            for i, part in enumerate(gradients):
                if part is not None and part is not dy:
                    new = graph.topological_order([part], seen.__contains__)
                    seen.update(new)
                    self.made |= dict.fromkeys(new, (rule, None)) | {part: (rule, i)}
        graph.forward(self.order)
        self.values: dict[Node, Array] = {n: n.value for n in self.order}

    def gradients(
        self, values: Mapping[Node, Array], edit: Edit | None = None
    ) -> dict[str, Array]:
        """The gradients at these values, or what an edit makes of them."""
        values = self.run(values, edit.edits) if edit else values
        return {name: values[node] for name, node in self.tensors.items()}

    def read(self, edits: Edits, ahead: bool = False) -> Edits:
        """The edits as the backward alone reads them, or the forward alone."""

        def computed(user: Node, at: At) -> Array:
            values = (edits[n](at) if n in edits else at(n) for n in user.inputs)
            return graph.computed(user, [*values])

        users = (n for n in self.order if not edits.keys().isdisjoint(n.inputs))
        first = self.forward.keys() - self.flows
        return {n: partial(computed, n) for n in users if (n in first) == ahead}

    def run(
        self,
        base: Mapping[Node, Array],
        edits: Edits = AS_IS,
        leaves: Mapping[Node, Array] = {},
    ) -> dict[Node, Array]:
        """All values, with edits or other leaves."""
        new, touched = {**base, **leaves}, {*leaves}
        with np.errstate(all="ignore"):
            for node in self.order:
                if not touched.isdisjoint(node.inputs):
                    touched.add(node)
                    new[node] = graph.computed(node, [new[n] for n in node.inputs])
                if node in edits:
                    touched.add(node)
                    new[node] = np.asarray(edits[node](new.__getitem__))
        return new

    def weights(self, tensor: str, scales: Sequence[Array]) -> dict[Node, Array]:
        """By flowing node how sums of a scaled tensor depend on it."""
        goal, found = self.tensors[tensor], dict[Node, Array]()
        parts = [graph.gradient([goal], [scale], self.flowing) for scale in scales]
        graph.forward(part for one in parts for part in one if part is not None)
        for node, *rows in zip(self.flowing, *parts, strict=True):
            flat = [row.value.ravel() for row in rows if row is not None]
            if flat:
                found[node] = np.stack(flat).astype(np.float64)
        return found
