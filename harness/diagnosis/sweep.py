"""A gradient's graph, evaluated with edits: the result of a mistaken backward.

Also its nodes in the user's terms: an expression, and the line that it stands on.

A gradient is linear in its cotangents. So one more sweep through the gradient's graph
shows how a change of any node that depends on them changes a random projection of each
tensor: thousands of edits are tested by a few dot products each, and only those that
fit the projections are evaluated in full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.orders import is_second
from gradwatch.harness.judging.reference import choosing
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.expressions import expression, is_number
from gradwatch.impls.graph.rewriting import At, Edits, again, rerun

Array = NDArray[Any]
FEW = 3  # steps before a node on which no right tensor depends
ELEMENTS = 10_000  # elements, read or made, that take as long as a step of a few


@dataclass(frozen=True)
class Edit:
    """A replacement of values in the graph.

    Attributes:
        rank: How far-fetched it is.
        text: Words for it; {term} and {rule} are those of the first node it is `about`,
            {0} and {1} the expressions of the others.
        edits: The new values by node, as functions of the old ones.
        plain: Whether it is nothing but a factor of a term.
        also: Another edit made with it.
        function: Whether the function, too, is another, if an output is wrong.
        loose: Whether it has a number for which others nearer and farther would do.
    """

    rank: float
    text: str
    about: tuple[Node, ...]
    edits: Edits
    plain: bool = False
    also: Edit | None = None
    loose: bool = False
    function: bool = False


class Sweep:
    """The graph of a gradient, with the origin of its nodes.

    Attributes:
        ends: Names of the gradients by node; `tensors` the other way round.
        inputs: The leaves by name.
        cotangents: The nodes of the cotangents.
        parts: For a node that has only some elements of another, the other.
        names: Names of inputs, cotangents and ends, by whole nodes.
        known: The nodes of inputs and outputs.
        made: For a node of the backward, the node whose rule made it, and the operand.
        passed: The cotangent that the rule of a node was given.
        order: All nodes, each after its inputs; `place` is their index in it.
        forward: Nodes that the outputs need.
        flowing: Nodes that depend on a cotangent, the ends first; `flows` is their set.
        spent: Steps that were computed, each with some `ELEMENTS` elements.
    """

    def __init__(self, build: Callable[[str], Mapping[str, Node]], ties: str) -> None:
        with graph.recording() as record:
            nodes = build(ties)
        self.record = record
        # A node of its own for each, so that an edit of one changes no other.
        same = graph.PRIMITIVES["reshape"]
        self.ends = {Node(same, (n,), {"shape": n.shape}): k for k, n in nodes.items()}
        self.tensors = {name: node for node, name in self.ends.items()}
        second = any(map(is_second, nodes))
        leaves = record.inputs[-len(nodes) :] if second else record.inputs
        names = (n.partition("d")[2] for n in record.names or nodes)
        # By dicts: `in` of a tuple would compare nodes, which builds nodes.
        given = dict(zip(leaves, names, strict=False))
        # In a second order the cotangents of the first order are inputs, too.
        pairs = [(y, dy) for y, dy in record.outputs if dy not in given]
        self.pairs, self.ties, self.leaves = pairs, ties, [*given]
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
        inner = (n for n in self.order if n in self.flows and n not in self.ends)
        self.flowing = [*ends, *inner]
        self.made: dict[Node, tuple[Node, int | None]] = {}
        self.passed = {rule: dy for rule, dy, _ in record.rules}
        seen = {*self.forward}
        for rule, dy, gradients in record.rules:
            seen.add(dy)
            # All nodes between a cotangent and a part were made by the same rule.
            for i, part in enumerate(gradients):
                if part is not None and part is not dy:
                    new = graph.topological_order([part], seen.__contains__)
                    seen.update(new)
                    self.made |= dict.fromkeys(new, (rule, None)) | {part: (rule, i)}
        graph.forward(self.order)
        self.values, self.spent = {n: n.value for n in self.order}, 0.0

    def gradients(
        self, values: Mapping[Node, Array], edit: Edit | None = None
    ) -> dict[str, Array]:
        """The gradients at these values, with an edit if there is one."""
        values = self.run(values, edit.edits) if edit else values
        return {name: values[node] for name, node in self.tensors.items()}

    def read(self, edits: Edits, again: bool = False) -> Edits:
        """Edits of the clean nodes that use a value, by which they alone read it.

        With `again` they compute again, with the edits, what they read.
        """
        new = set[Node]()
        for node in self.steps:
            if node in edits or (again and not new.isdisjoint(node.inputs)):
                new.add(node)
        users = [n for n in self.clean if n not in new and not new.isdisjoint(n.inputs)]
        kept = new.union(users)
        chain = graph.topological_order(users, lambda n: n not in kept)
        chain = [n for n in chain if n in new]

        @lru_cache(1)
        def values(at: At) -> dict[Node, Array]:
            made = rerun(chain, edits, at)
            self.spend(made)
            return made

        def computed(user: Node, at: At) -> Array:
            made = values(at)
            read = [made[n] if n in made else at(n) for n in user.inputs]
            return graph.computed(user, read)

        return {n: partial(computed, n) for n in users}

    def blame(self, wrong: Sequence[str], right: set[str]) -> list[str]:
        """Find the nodes that may be mistaken; return the wrong tensors, nearest first.

        No right tensor needs a `clean` node; `near` are those, and `FEW` before them,
        `shared` the first and last that all wrong tensors need. A mistake lies behind
        the nearest, too: `far` counts the steps from a node to a clean one behind it.
        """
        judged = right.union(wrong)
        behind = {n: judged & {self.ends.get(n, "")} for n in self.order}
        for node in reversed(self.order):
            for source in node.inputs:
                behind[source] |= behind[node]
        nearest = sorted(wrong, key=lambda one: sum(one in s for s in behind.values()))
        later = [n for n in self.order if n in self.flows or n not in self.forward]
        clean = [n for n in later if behind[n] and behind[n].isdisjoint(right)]
        self.clean = dict.fromkeys(clean or later)
        shared = [n for n in clean if n in self.flows and behind[n] == {*wrong}]
        self.shared = (*shared[:1], *shared[-1:]) if right and len(wrong) > 1 else ()
        near = {*self.clean}
        for _ in range(FEW):
            near.update(*[n.inputs for n in near])
        self.near = [n for n in self.flowing if n in near]
        self.far = dict.fromkeys(self.order, math.inf)
        self.far |= {n: 0.0 for n in self.clean if behind[n] & {*nearest[:1]}}
        for node in reversed(self.order):
            for source in node.inputs:
                self.far[source] = min(self.far[source], self.far[node] + 1)
        return nearest

    @cached_property
    def steps(self) -> list[Node]:
        """Nodes that depend on no cotangent."""
        return [n for n in self.order if n not in self.flows]

    def outputs(self, edit: Edit) -> dict[str, Array]:
        """The outputs of the function with an edit."""
        values = self.run(self.values, edit.edits, self.steps)
        ends = ((name, end.inputs[0]) for end, name in self.ends.items())
        return {n: values[y] for n, y in ends if y not in self.flows}

    def differentiated(self, edit: Edit) -> Edit:
        """The edit of a function, of which all gradients become those of the other."""
        new = dict[Node, Node]()

        def now(node: Node) -> Node:
            return new.get(node, node)

        for node in self.steps:
            if not new.keys().isdisjoint(node.inputs):
                new[node] = again(node, [*map(now, node.inputs)])
            if node in edit.edits:
                new[node] = edit.edits[node](now if node.inputs else lambda n: n)
        ends = {n: now(n.inputs[0]) for n in self.ends if n.inputs[0] not in self.flows}
        with choosing(self.ties):
            ys, dys = zip(*((now(y), dy) for y, dy in self.pairs), strict=True)
            parts = graph.gradient(ys, dys, self.leaves)
        for leaf, part in zip(self.leaves, parts, strict=True):
            if (name := f"d{self.names[leaf]}") in self.tensors:
                part = graph.variable(0 * leaf.value) if part is None else part
                ends[self.tensors[name]] = part

        def made(node: Node, at: At) -> Array:
            known = dict[Node, Array]()
            for n in graph.topological_order([node], self.place.__contains__):
                values = [known[i] if i in known else at(i) for i in n.inputs]
                known[n] = graph.computed(n, values) if n.inputs else n.value
            self.spend(known)
            return known[node] if node in known else at(node)

        return replace(edit, edits={to: partial(made, n) for to, n in ends.items()})

    def run(
        self, base: Mapping[Node, Array], edits: Edits, some: Sequence[Node] = ()
    ) -> dict[Node, Array]:
        """The values of all nodes, with edits; those of `some` alone change."""
        new = rerun(some or self.order, edits, base.__getitem__)
        self.spend(new)
        return {**base, **new}

    def spend(self, nodes: Iterable[Node]) -> None:
        """Count the computing of nodes as steps."""
        sizes = [max(x.size for x in (n, *n.inputs)) for n in nodes]
        self.spent += len(sizes) + sum(sizes) / ELEMENTS

    def weights(self, tensor: str, scales: Sequence[Array]) -> dict[Node, Array]:
        """Gradients of the scaled sums of a tensor by the nodes near the mistake."""
        goal, found = self.tensors[tensor], dict[Node, Array]()
        parts = [graph.gradient([goal], [scale], self.near) for scale in scales]
        self.spend(self.near * len(scales))
        graph.forward(part for one in parts for part in one if part is not None)
        for node, *rows in zip(self.near, *parts, strict=True):
            flat = [row.value.ravel() for row in rows if row is not None]
            if flat:
                found[node] = np.stack(flat).astype(np.float64)
        return found

    @cached_property
    def lines(self) -> dict[Node, Any]:
        """Lines of the user's code by node; a node without one has its last user's."""
        lines = dict[Node, Any]()
        for node in reversed(self.forward):
            lines[node] = self.record.places.get(node) or lines.get(node)
            lines |= {n: lines[node] for n in node.inputs if n not in lines}
        return lines

    def say(self, edit: Edit) -> str:
        """An edit in words, with the line of the user's code that it is about."""
        first, *others = (self.parts.get(node, node) for node in edit.about)
        made, _ = self.made.get(first, (first, None))
        said = edit.text.format(
            *map(self.quoted, others),
            term=self.term(first),
            rule=f"the backward of {self.quoted(made)}",
        )
        said += "" if first in self.names else self.line(made)
        return f"{said}, and {self.say(edit.also)}" if edit.also else said

    def where(self) -> str:
        """Words for what all wrong tensors need, and no right ones; "" if nothing."""
        shared = [n for n in self.shared if n not in self.cotangents]
        ends = (Edit(0, "{term}", (n,), {}) for n in shared)
        said = ", up to ".join(dict.fromkeys(map(self.say, ends)))
        return f"; all wrong tensors need {said}, and no right ones do" if said else ""

    def quoted(self, node: Node) -> str:
        """A name, a number, or an expression such as `x - sum(x) / 8`."""
        text = expression(node, self.names)
        bare = node.primitive is None or node in self.names
        bare |= is_number(node, self.names)
        return text if bare else f"`{text}`"

    def line(self, node: Node) -> str:
        """The line of an operation in the user's code; empty if not known."""
        place = self.lines.get(node) or ""
        folder = str(Path(getattr(place, "file", "")).parent) + "/"
        return f" ({place})".replace(folder, "") if str(place) else ""

    def term(self, node: Node, *, parts: bool = True) -> str:
        """Words for a node of the backward: the term that a rule passes on."""
        if node in self.names:
            return self.names[node]
        rule, place = self.made.get(node, (None, None))
        if rule is None:  # a sum of terms, by the node whose gradient it is
            for end, dy, _ in self.record.rules:
                if dy is node:
                    return f"the gradient of {self.quoted(end)}"
            ones = {self.term(n, parts=False): n for n in node.inputs if parts}
            return f"the sum of {' and '.join(ones)}" if ones else "a sum of terms"
        through = f"the term through {self.quoted(rule)}"
        if place is not None and len(rule.inputs) > 1:
            through += f" to {self.quoted(rule.inputs[place])}"
        return through
