"""What tensors are judged against: cheaply where that is enough, else in full."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gradwatch.harness.judging.acceptance.early import accepted, is_large
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS, Array, arithmetics
from gradwatch.harness.judging.reference import (
    Build,
    Reference,
    nodes_of,
    reference_of_graph,
    results_of,
    wider,
)
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem


@dataclass(frozen=True)
class Question:
    """The graph of the right tensors, which is evaluated as far as it is needed.

    Attributes:
        build: Gives the nodes by name, not evaluated, for leaves of a type.
        dtype: The precision under test.
        compute: The precision of intermediate values; None is what frameworks do.
        outputs: Of a second order, the function's outputs, likewise.
        unreached: Gradients that no path leads to; building fills it.
    """

    build: Build
    dtype: str
    compute: str | None = None
    outputs: Build | None = None
    unreached: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, compute: str | None = None) -> Question:
        """Of an op's gradients, outputs and state."""
        second = getattr(problem, "order", "vjp") != "vjp"
        outputs = functools.partial(results_of, problem) if second else None
        arithmetics(problem.dtype, compute)
        build = functools.partial(nodes_of, problem)
        return cls(build, problem.dtype, compute, outputs)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the tensors."""
        if "right" in self.__dict__:
            return tuple(self.right.graphs["first"])
        with graph.ties("first"):
            return tuple(self.build(np.dtype(np.float64)))

    @functools.cached_property
    def right(self) -> Reference:
        """The right tensors, with all radii."""
        wide, outputs = wider(PRECISIONS[self.dtype]), self.outputs
        return reference_of_graph(
            lambda: self.build(wide),
            self.dtype,
            self.compute,
            None if outputs is None else lambda: outputs(wide),
        )

    def judge(
        self, got: Mapping[str, Array | None], dtypes: Mapping[str, str]
    ) -> tuple[Judgement, ...]:
        """The judgements, in the order of the tensors.

        Args:
            got: The tensors by name.
            dtypes: Names of the dtypes that they have where they come from.
        """
        found: dict[str, Judgement] = {}
        if is_large(got) and "right" not in self.__dict__:
            found = accepted(self.build, self.dtype, got, dtypes, self.compute)
        left = {name: array for name, array in got.items() if name not in found}
        if left:
            judged = judge_tensors(self.right, left, dtypes, dtype=self.dtype)
            found |= {j.tensor: j for j in judged}
        return tuple(found[name] for name in got)
