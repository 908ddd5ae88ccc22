"""Mistakes in double backwards, made in the engine's second sweep over a gradient.

At an edge, which is a node and the place of one of its inputs, one term of the chain
rule flows on. `harness.selftest.examine` asks the judge alone about them, for the
rivals take no second order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from gradwatch.harness.judging.cases import run_formula
from gradwatch.harness.judging.precisions import Array
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem
from gradwatch.impls.graph import Node

EACH = 4  # mistakes of a kind in one trial; most ops have fewer than thirty edges
#: The precision and the regimes in which mistakes are planted.
PLANTED = ("float64", ("normal", "mixed", "dy_zeros"))

Edge = tuple[Node, int]
Tensors = Mapping[str, Array | None]
Spoil = Callable[[Node], Node | None]
EDGES: dict[str, Spoil] = {
    "a term lost": lambda term: None,
    "a term 1e-5 off": lambda term: term * (1 + 1e-5),
    "a term doubled": lambda term: term * 2.0,
    "a term of the wrong sign": lambda term: -term,
}
#: A backward that saves a value of the forward without its history, or all of them.
DETACHED = ("a saved tensor detached", "silently constant")
KINDS = (*EDGES, *DETACHED)


class Sweep:
    """The second sweep over a problem's gradient, in which mistakes are planted."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.leaves = {n: graph.variable(a) for n, a in problem.inputs.items()}
        returned = run_formula(problem, self.leaves)
        outputs = dict(zip(problem.op.outputs, returned, strict=False))
        pairs = zip(problem.op.outputs, problem.cotangents, strict=True)
        given = {n: dy for n, dy in pairs if n in problem.differentiated}
        self.dys = {n: graph.variable(dy) for n, dy in given.items()}
        asked = [outputs[n] for n in self.dys]
        wanted = [self.leaves[n] for n in problem.wanted]
        first = graph.gradient(asked, list(self.dys.values()), wanted)
        tangents = [problem.tangents[n] for n in problem.wanted]
        along = zip(first, tangents, strict=True)
        self.first = [(dx, v) for dx, v in along if dx is not None]
        self.forward = set(graph.topological_order(asked))
        self.order = graph.topological_order([dx for dx, _ in self.first])

    def run(self, passed_on: Callable[[Edge, Node], Node | None]) -> Tensors:
        """The tensors, if an edge's term is `passed_on` like this; None if it is lost.

        A tensor is None that no term reaches.
        """
        reached: dict[Node, Node] = {}
        for dx, v in self.first:
            _add(reached, dx, graph.variable(v))
        for node in reversed(self.order):
            if node.primitive is None or node not in reached:
                continue
            terms = node.primitive.gradient(
                reached[node], node, *node.inputs, **node.attributes
            )
            for i, (source, term) in enumerate(zip(node.inputs, terms, strict=True)):
                if term is not None and source.dtype.kind in "fO":
                    left = passed_on((node, i), term)
                    if left is not None:
                        _add(reached, source, left)
        sources = {**self.leaves, **{f"d{n}": dy for n, dy in self.dys.items()}}
        named = {n: n.removeprefix("hvp.d") for n in self.problem.derivatives}
        nodes = {n: reached.get(sources[short]) for n, short in named.items()}
        graph.forward([node for node in nodes.values() if node is not None])
        return {n: None if node is None else node.value for n, node in nodes.items()}

    def edges(self) -> list[Edge]:
        """All edges along which a term flows."""
        seen: dict[Edge, Node] = {}
        self.run(seen.setdefault)
        return [*seen]

    def saved(self, edge: Edge) -> bool:
        """Whether the backward reads a value of the forward there."""
        node, place = edge
        return node not in self.forward and node.inputs[place] in self.forward


def _add(reached: dict[Node, Node], node: Node, term: Node) -> None:
    reached[node] = reached[node] + term if node in reached else term


def mistakes(sweep: Sweep, rng: np.random.Generator) -> Iterator[tuple[str, Tensors]]:
    """The right tensors, named "", then those of each mistake that is planted."""
    yield "", sweep.run(lambda edge, term: term)
    edges = sweep.edges()
    saved = [edge for edge in edges if sweep.saved(edge)]

    def spoiled(among: list[Edge], how: Spoil) -> Tensors:
        places = set(among)
        return sweep.run(lambda edge, term: how(term) if edge in places else term)

    for kind, how in EDGES.items():
        for i in rng.permutation(len(edges))[:EACH]:
            yield kind, spoiled([edges[i]], how)
    for i in rng.permutation(len(saved))[:EACH]:
        yield DETACHED[0], spoiled([saved[i]], EDGES["a term lost"])
    if saved:
        yield DETACHED[1], spoiled(saved, EDGES["a term lost"])
