"""What rounding hides of a tensor, and in which step."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.report import Row
from gradwatch.harness.judging.diagnosis.sweep import Sweep
from gradwatch.harness.judging.diagnosis.words import Words
from gradwatch.harness.judging.draws import Draws, halves
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.rounding.analysis import running_errors
from gradwatch.harness.judging.rounding.thresholds import SAYS_NOTHING, SMALL
from gradwatch.harness.judging.verdict import is_zero, zeros_pass
from gradwatch.impls import graph
from gradwatch.impls.graph import Node


def row_of(
    trial: Trial, judgement: Judgement, how: str = "", right: Reference | None = None
) -> Row:
    """A judgement with what is known of its trial, and what rounding hides of it."""
    silent = zero = False
    if right is not None and judgement.verdict == "vacuous":
        zero = is_zero(right, judgement.tensor)
        silent = not zero and zeros_pass(right, judgement.tensor)
    made = trial.name, trial.dtype, judgement, how, silent, zero
    return Row(*made, own=trial.as_given, edge=trial.edge)


class Growth:
    """How rounding grows from step to step, in an evaluation with one at each."""

    def __init__(self, right: Reference) -> None:
        make, self.nodes = right.build, dict[str, Node]()

        def build() -> dict[str, Node]:
            self.nodes = dict(make())
            return self.nodes

        sweep, narrowest = Sweep(build, "first"), right.arithmetics[-1]
        self.words = Words(sweep)
        order = graph.topological_order([*sweep.order, *self.nodes.values()])
        graph.forward(order)
        draws = Draws(running_errors(order, narrowest, right.limit), order, once=True)
        self.least = narrowest.roundoff
        with np.errstate(all="ignore"):
            pairs = draws.pair(np.random.default_rng(0), {*order})
            self.shares = {n: self._share(n, halves(n, pairs[n])) for n in order}

    def _share(self, node: Node, moved: tuple[Any, Any] | None) -> float:
        """How far rounding has moved a node, over its norm; at least one rounding."""
        if moved is None or not moved[0].any():
            return self.least
        share = np.linalg.norm(moved[0]) / np.linalg.norm(node.value)
        return max(float(share), self.least) if share < np.inf else 1.0

    def explain(self, tensor: str) -> str:
        """The step before a tensor that makes most of it, its line, and a way round."""
        shares, end = self.shares, self.nodes[tensor]
        behind = dict.fromkeys([end])
        for node in reversed(graph.topological_order([end])):
            if node in behind:  # and what is hardly felt in it is not
                felt = (s for s in node.inputs if shares[s] * SMALL <= shares[node])
                behind |= dict.fromkeys(felt)

        def growth(node: Node) -> float:
            return shares[node] / max((shares[s] for s in node.inputs), default=1.0)

        most = [n for n in behind if shares[n] >= SMALL * min(shares[end], 1.0)]
        step, words = max(most, key=growth), self.words
        made = words.sweep.made
        before = reversed(graph.topological_order([step]))
        rule = next((made[n][0] for n in before if n in made), step)
        term = words.term(step) if step in words.sweep.flows else words.quoted(step)
        said = f"rounding grows {growth(step):,.0f}-fold in {term}{words.line(rule)}"
        if shares[step] >= 1:
            said = f"nothing but rounding is left where terms cancel in {term}"
            said += words.line(rule)
        if growth(step) < 1 / SAYS_NOTHING:
            much = shares[end] / self.least
            said = f"rounding grows {much:,.0f}-fold in all, in no step by much"
        return (
            f"{said}: float64 tells more, or more numbers in its sums (a larger batch)"
        )
