"""What the judge of second orders catches, and whom it accuses.

    python scripts/studies/second_orders.py planted|right [--seed 1] [--ops NAME,...]

planted: mistakes in the double backward, made in the engine's second sweep in float64:
a term of the chain rule is lost, a saved tensor is detached, all of them are (the
backward is silently a constant), one term is 1e-5 off, doubled, or of the wrong sign. A
mistake counts if it moves some tensor by more than 1e-6 of its largest element.

right: PyTorch's and the engine's own tensors of both orders, all ops, all regimes,
float64 and float32. What known_outcomes.json lists is counted apart.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from harness.judging import known
from harness.judging.cases import REGIMES, Trial, of_order, run_formula, trial, trials
from harness.judging.reference import reference
from harness.judging.verdict import judge_tensors
from harness.project.verdicts import PASSING
from impls import catalogue, graph
from impls.contract import Problem, Unsupported
from impls.graph import Node

EFFECT = (
    1e-6  # relative to the largest element of a tensor: what issue and docs promise
)
EACH = 4  # mistakes of a kind at one trial
PLANTED_IN = ("normal", "mixed", "dy_zeros")
BACKENDS = ("numpy_graph", "torch_formula", "torch_autograd")

Spoil = Callable[[Node], Node | None]
EDGES: dict[str, Spoil] = {
    "a term lost": lambda part: None,
    "a term 1e-5 off": lambda part: part * (1 + 1e-5),
    "a term doubled": lambda part: part * 2.0,
    "a term of the wrong sign": lambda part: -part,
}
DETACHED = ("a saved tensor detached", "silently constant")


class Sweep:
    """The second sweep over a problem's gradient, which mistakes are planted in.

    An edge is a node and the place of one of its inputs: a term of the chain rule.
    """

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

    def run(
        self, spoil: Callable[[Node, int, Node], Node | None]
    ) -> dict[str, np.ndarray[Any, Any] | None]:
        """The tensors; `spoil` takes node, place and the term that flows on."""
        reached: dict[Node, Node] = {}
        for dx, v in self.first:
            add(reached, dx, graph.variable(v))
        for node in reversed(self.order):
            if node.primitive is None or node not in reached:
                continue
            parts = node.primitive.gradient(
                reached[node], node, *node.inputs, **node.attributes
            )
            for place, (source, part) in enumerate(
                zip(node.inputs, parts, strict=True)
            ):
                if part is not None and source.dtype.kind in "fO":
                    left = spoil(node, place, part)
                    if left is not None:
                        add(reached, source, left)
        sources = {**self.leaves, **{f"d{n}": u for n, u in self.dys.items()}}
        named = {n.removeprefix("hvp.d"): n for n in self.problem.derivatives}
        nodes = {n: reached.get(sources[short]) for short, n in named.items()}
        graph.forward([node for node in nodes.values() if node is not None])
        return {n: None if node is None else node.value for n, node in nodes.items()}

    def edges(self) -> list[tuple[Node, int]]:
        """All terms that flow."""
        seen: list[tuple[Node, int]] = []
        self.run(lambda node, place, part: seen.append((node, place)) or part)
        return seen

    def saved(self, edge: tuple[Node, int]) -> bool:
        """Whether the backward reads a value of the forward there."""
        node, place = edge
        return node not in self.forward and node.inputs[place] in self.forward


def add(reached: dict[Node, Node], node: Node, part: Node) -> None:
    """Terms that meet are added."""
    reached[node] = reached[node] + part if node in reached else part


def mistakes(sweep: Sweep, rng: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and tensors of each mistake that is planted at a trial."""
    edges = sweep.edges()
    saved = [edge for edge in edges if sweep.saved(edge)]

    def only(at: list[tuple[Node, int]], how: Spoil) -> dict[str, Any]:
        places = set(at)
        return sweep.run(
            lambda node, place, part: how(part) if (node, place) in places else part
        )

    for kind, how in EDGES.items():
        for i in rng.permutation(len(edges))[:EACH]:
            yield kind, only([edges[i]], how)
    for i in rng.permutation(len(saved))[:EACH]:
        yield DETACHED[0], only([saved[i]], EDGES["a term lost"])
    if saved:
        yield DETACHED[1], only(saved, EDGES["a term lost"])


def effect(wrong: Any, right: Any) -> float:
    """The largest change of a tensor, relative to its largest element."""
    largest = 0.0
    for name, array in right.items():
        here = np.zeros_like(array) if array is None else array
        other = np.zeros_like(here) if wrong[name] is None else wrong[name]
        if here is None or not here.size:
            continue
        size = np.abs(here).max()
        moved = np.abs(other - here).max()
        if moved > 0:
            largest = max(largest, float(moved / size) if size else np.inf)
    return largest


def planted(ops: Sequence[str], seed: int) -> dict[str, Any]:
    """By kind: mistakes that count, those caught, and the missed ones."""
    tried, caught, missed = Counter[str](), Counter[str](), list[str]()
    for name in ops:
        op = catalogue.load_op(name)
        for regime in PLANTED_IN:
            for case in op.cases.values():
                one = trial(op, case, REGIMES[regime], "float64", seed)
                one = of_order(one, "hvp", seed)
                right, sweep = reference(one.problem), Sweep(one.problem)
                if not sweep.first:
                    continue
                base = sweep.run(lambda node, place, part: part)
                zeros = {n: x.value for n, x in right.graphs["first"].items()}
                base = {
                    n: np.zeros(zeros[n].shape) if a is None else a
                    for n, a in base.items()
                }
                rng = np.random.default_rng([seed, len(tried)])
                for kind, wrong in mistakes(sweep, rng):
                    moved = effect(wrong, base)
                    if not moved > EFFECT:
                        continue
                    tried[kind] += 1
                    dtypes = dict.fromkeys(wrong, "float64")
                    found = judge_tensors(right, wrong, dtypes, dtype="float64")
                    if all(j.passes for j in found):
                        verdicts = ",".join(sorted({j.verdict for j in found}))
                        missed.append(f"{one.name} {kind}: {moved:.1e}, {verdicts}")
                    else:
                        caught[kind] += 1
    total, seen = sum(tried.values()), sum(caught.values())
    kinds = {kind: f"{caught[kind]} of {n}" for kind, n in sorted(tried.items())}
    return {
        "caught": seen,
        "of": total,
        "share": seen / total,
        **kinds,
        "missed": missed,
    }


def right(ops: Sequence[str], seed: int) -> dict[str, Any]:
    """Verdicts on right tensors, and who was accused without being listed."""
    verdicts, accused = Counter[str](), list[str]()
    entries = known.load()
    for name in ops:
        made = trials(catalogue.load_op(name), seed=seed, orders=("jvp", "hvp"))
        for one in made:
            truth = reference(one.problem)
            for backend in BACKENDS:
                for verdict, told in _verdicts(one, truth, backend, entries):
                    verdicts[verdict] += 1
                    if verdict == "accused":
                        accused.append(told)
    return {"tensors": sum(verdicts.values()), **verdicts, "accused_are": accused}


def _verdicts(
    one: Trial, truth: Any, backend: str, entries: Sequence[known.Known]
) -> Iterator[tuple[str, str]]:
    problem, loaded = one.problem, catalogue.load_backend(backend)
    try:
        result = getattr(loaded.prepare(problem), one.order)()
    except Unsupported:
        return
    except RuntimeError as error:
        yield "raised", str(error)
        return
    found = judge_tensors(truth, result.gradients, result.dtypes, dtype=problem.dtype)
    for j in found:
        names = (problem.op.name, backend, loaded.version(), one.name, j.tensor)
        listed = any(e.order == one.order and e.names(*names) for e in entries)
        if j.verdict in PASSING:
            yield j.verdict, ""
        else:
            told = f"{one.name} {backend} {j.message}"
            yield ("listed" if listed else "accused"), told


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("planted", "right"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ops", default="")
    asked = parser.parse_args()
    ops = tuple(filter(None, asked.ops.split(","))) or catalogue.op_names()
    with np.errstate(all="ignore"):
        figures = {"planted": planted, "right": right}[asked.what](ops, asked.seed)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
