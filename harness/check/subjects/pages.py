"""An op as what is checked against; its truth is its formula."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from gradwatch.harness.check.inputs import Trial
from gradwatch.harness.check.runs import Tensor
from gradwatch.harness.check.subjects.binding import (
    Bound,
    Call,
    Function,
    State,
    arrays,
    named,
)
from gradwatch.harness.judging.question import Question
from gradwatch.impls.backends._torchlike_names import ArrayNames
from gradwatch.impls.contract import Array, Op, Problem, as_tuple


class OpSubject:
    """An op with a formula, which is its truth."""

    lengths: tuple[int, ...] = ()
    state: ClassVar[State] = {}

    def __init__(self, op: Op) -> None:
        self.op = op
        self.name = op.name

    def bound(self, trial: Trial) -> Bound:
        """The tensors of a trial, under the names of the page."""
        tensors = tuple(trial.args)
        if len(tensors) != len(self.op.inputs):
            raise ValueError(
                f"{self.name} has inputs {', '.join(self.op.inputs)};"
                f" {len(tensors)} were given"
            )
        names = self.op.inputs
        wanted = tuple(name in self.op.differentiable for name in names)
        state = frozenset(i for i, name in enumerate(names) if name in self.op.state)
        call = Call(self._formula, trial.args, trial.kwargs)
        return Bound(call, names, tensors, wanted, updated=state)

    def cost(self, trial: Trial) -> int:
        """A page has few operations."""
        return 0

    def _formula(self, *args: Tensor, **attributes: Any) -> tuple[Any, ...]:
        """The outputs in PyTorch."""
        out = self.op.said("formula")(ArrayNames(torch), *args, **attributes)
        return as_tuple(out)[: len(self.op.outputs)]

    @property
    def own(self) -> Function:
        """PyTorch's own call, which is what is judged without a candidate."""
        return functools.partial(self.op.said("autograd", "torch"), torch)

    def truth(
        self,
        bound: Bound,
        cotangents: Sequence[Array | None],
        tangents: Sequence[Array | None],
        trial: Trial,
        compute: str | None = None,
    ) -> Question:
        """Its formula's gradients, outputs and state."""
        problem = Problem(
            *(self.op, arrays(bound), cotangents, dict(trial.kwargs)),
            dtype=trial.dtype,
            order=trial.order,
            tangents=named(bound, tangents),
        )
        return Question.of(problem, compute)

    def results(self, bound: Bound) -> tuple[str, ...]:
        """The outputs of the page."""
        return self.op.outputs
