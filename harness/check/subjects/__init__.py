"""The references of checks: functions and modules as functions of tensors alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.frameworks import Bound
from gradwatch.harness.judging.question import Cost, Question
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Array, Op, Problem, as_tuple


def subject_of(given: Any, beside: Any = None, of_jax: bool = False) -> Any:
    """The subject of a reference in any form; UnknownName or TypeError for others."""
    if isinstance(given, (str, Op)):
        return OpSubject(catalogue.load_op(given) if isinstance(given, str) else given)
    if not callable(given):
        raise TypeError(
            f"a reference is a function, a module, an Op or its name, no {given!r}"
        )
    if of_jax:
        from gradwatch.harness.check.subjects.jax import JaxSubject

        return JaxSubject(given)
    from gradwatch.harness.check.subjects.pytorch import TorchSubject

    return TorchSubject(given, beside)


class OpSubject:
    """An op with a formula, which is its truth."""

    lengths: tuple[int, ...] = ()
    state: ClassVar[dict[str, Any]] = {}

    def __init__(self, op: Op) -> None:
        self.op, self.name = op, op.name

    @functools.cached_property
    def own(self) -> Callable[..., Any]:
        """PyTorch's own call, which is judged where there is no candidate."""
        import torch

        return functools.partial(self.op.said("autograd", "torch"), torch)

    def op_at(self, trial: Trial) -> Op:
        """The op, whatever the trial."""
        return self.op

    def bound(self, trial: Trial, traced: bool = True) -> Bound:
        """The tensors of a trial, under the names of the op."""
        op, tensors = self.op_at(trial), tuple(trial.tensors)
        if len(tensors) != len(op.inputs):
            raise ValueError(
                f"{self.name} has inputs {', '.join(op.inputs)};"
                f" {len(tensors)} were given"
            )
        wanted = tuple(name in op.differentiable for name in op.inputs)
        state = frozenset(i for i, name in enumerate(op.inputs) if name in op.state)
        call = trial.framework.Call(self._called(trial), trial.args, trial.kwargs)
        return Bound(call, op.inputs, tensors, wanted, op.outputs, state)

    def _called(self, trial: Trial) -> Callable[..., Any]:
        """The formula in the framework's functions."""

        def formula(*args: Any, **attributes: Any) -> tuple[Any, ...]:
            out = self.op.said("formula")(trial.framework.ARRAYS, *args, **attributes)
            return as_tuple(out)[: len(self.op.outputs)]

        return formula

    def cost(self, trial: Trial, most: float) -> Cost:
        """The cost of a call, estimated by its inputs: a page has few operations."""
        return Cost(sum(trial.sizes), 1)

    def admit(self, trial: Trial, most: float) -> None:
        """Run the reference at a trial, and raise as it does; `most` is not used."""
        bound = self.bound(trial)
        trial.framework.forward(bound.call, bound.tensors, bound.wanted)

    def truth(
        self,
        bound: Bound,
        cotangents: Sequence[Array | None],
        tangents: Sequence[Array | None],
        trial: Trial,
        compute: str | None = None,
    ) -> Question:
        """The formula's gradients, outputs and state."""
        arrays = map(trial.framework.array_of, bound.tensors)
        along = zip(bound.names, tangents, strict=True)
        problem = Problem(
            self.op_at(trial),
            dict(zip(bound.names, arrays, strict=True)),
            cotangents,
            dict(trial.kwargs),
            dtype=trial.dtype,
            order=trial.order,
            tangents={name: v for name, v in along if v is not None},
        )
        return Question.of(problem, compute)
