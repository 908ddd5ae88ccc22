"""Plants mistakes in double backwards, and judges right tensors of second order.

This is a handler of `harness.endpoint`, beside that of `harness.selftest.examine`. Its
mistakes are made in the engine's second sweep, over the graph of a gradient: at an
edge, which is a node and the place of one of its inputs, one term of the chain rule
flows on. The judge alone is asked, for the rivals take no second order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.harness.judging.cases import run_formula
from gradwatch.harness.judging.precisions import Array
from gradwatch.harness.judging.reference import Reference, reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.selftest.examine import (
    JUDGE,
    Alarm,
    Run,
    packed,
    right_results,
)
from gradwatch.harness.workers.evaluate import problem_of
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


def second_orders(request: Mapping[str, Any]) -> dict[str, Any]:
    """Judge the right tensors of an order, and mistakes planted in a double backward.

    Options: `backends` (whose right tensors to judge), `planted` (also plant mistakes),
    `seed` (of the edges where they are made). The reply is that of `examine`.
    """
    options, problem = request["options"], problem_of(request)
    with np.errstate(all="ignore"):
        alarms = [*_alarms(problem, options["backends"])]
        runs = [*planted(problem, options["seed"])] if options["planted"] else []
    return packed(alarms, runs)


# Right tensors --------------------------------------------------------------------


def _alarms(problem: Problem, backends: Sequence[str]) -> Iterator[Alarm]:
    truth: Reference | None = None  # none where no backend has the order
    for name, version, result in right_results(problem, backends):
        truth = truth or reference(problem)
        for j in judge_tensors(
            truth, result.gradients, result.dtypes, dtype=problem.dtype
        ):
            accused = () if j.passes else (JUDGE,)
            figures = (j.tensor, j.verdict, j.ratio, j.limit)
            yield Alarm(name, version, *figures, accused, (JUDGE,))


# Planted mistakes -----------------------------------------------------------------


def planted(problem: Problem, seed: int) -> Iterator[Run]:
    """What the judge says of each mistake in the double backward of a problem.

    A run's effect is relative to the largest element of the tensor that it moves most.
    """
    sweep = Sweep(problem)
    if not sweep.first:
        return
    truth, right = reference(problem), sweep.run(lambda edge, term: term)
    for kind, wrong in mistakes(sweep, np.random.default_rng(seed)):
        dtypes = {name: a.dtype.name for name, a in wrong.items() if a is not None}
        judged = judge_tensors(truth, wrong, dtypes, dtype=problem.dtype)
        accused = () if all(j.passes for j in judged) else (JUDGE,)
        ratio = max((j.ratio for j in judged if j.ratio == j.ratio), default=0.0)
        size = effect(wrong, right, truth)
        figures = ("number" if size else "same", size, ratio, ratio, truth.limit)
        yield Run(f"double backward: {kind}", *figures, accused, (JUDGE,))


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
    """Kind and tensors of each mistake that is planted in a trial."""
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


def effect(wrong: Tensors, right: Tensors, truth: Reference) -> float:
    """The largest change of a tensor, relative to its largest element; None is zero.

    A change that is not a number, as between infinities, is none.
    """
    largest = 0.0
    for name, tensor in truth.graphs["first"].items():
        zeros = np.zeros(tensor.value.shape)
        here, other = (zeros if t is None else t for t in (right[name], wrong[name]))
        moved = np.abs(other - here).max(initial=0.0)
        if moved > 0:
            size = np.abs(here).max()
            largest = max(largest, float(moved / size) if size else np.inf)
    return largest
