"""A function of JAX's as a reference; its truth is its jaxpr's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.frameworks import dtype_of, framework
from gradwatch.harness.check.frameworks.jax import Call
from gradwatch.harness.check.subjects import OpSubject
from gradwatch.harness.judging.question import Cost, Question
from gradwatch.harness.tracing.lax import Traced, is_inexact
from gradwatch.harness.tracing.untraceable import name_of, parameters_of
from gradwatch.impls.contract import Op


class JaxSubject(OpSubject):
    """A function of JAX's, as an op whose formula walks its jaxpr."""

    def __init__(self, given: Callable[..., Any]) -> None:
        self.given = self.own = given
        self.name, self._made = name_of(given), dict[Any, Op]()

    def op_at(self, trial: Trial) -> Op:
        """The op for the types of a trial's tensors and its other arguments."""
        tensors = trial.tensors
        wide = bool(jax.config.jax_enable_x64) or trial.dtype == "float64"
        with jax.enable_x64(wide):
            names = map(dtype_of, tensors)
            kinds = tuple(jax.dtypes.canonicalize_dtype(jnp.dtype(n)) for n in names)
        within, given = trial.framework.mapped, (trial.args, dict(trial.kwargs))
        key = kinds, wide, repr(within(lambda _: None, given))
        if key not in self._made:
            call = Call(self.given, trial.args, trial.kwargs, within=within)
            formula = Traced(call, kinds, wide)
            returned = formula.returned([tuple(t.shape) for t in tensors])
            self._made[key] = self._op(formula, returned, trial)
        return self._made[key]

    def _op(self, formula: Traced, returned: list[Any], trial: Trial) -> Op:
        several = len(returned) > 1
        outputs = {f"y{i}" if several else "y": t for i, t in enumerate(returned)}
        names = list(self._names(trial))
        fixed = zip(names, formula.dtypes, strict=True)
        return Op(
            self.name,
            inputs=" ".join(names),
            outputs=" ".join(outputs),
            constants=" ".join(n for n, t in fixed if not is_inexact(t)),
            integers=" ".join(n for n, t in outputs.items() if not is_inexact(t)),
            formula=formula,
        )

    def _names(self, trial: Trial) -> Iterator[str]:
        """The name of each tensor, by the signature and the containers."""
        used, parameters = trial.framework, parameters_of(self.given, len(trial.args))
        for path, leaf in used.paths((trial.args, dict(trial.kwargs))):
            if used.tensors(leaf):
                named = path[0].idx == 1  # of the keyword arguments
                first = path[1].key if named else parameters[path[1].idx]
                yield first + used.path_name(path[2:]).replace(" ", "_")

    def _called(self, trial: Trial) -> Callable[..., Any]:
        if trial.framework is framework("jax"):
            return self.given
        from gradwatch.harness.check.frameworks.bridge import in_torch

        return in_torch(self.given)

    def truth(self, *asked: Any) -> Question:
        """The right tensors; raises here where the jaxpr cannot be followed."""
        question = super().truth(*asked)
        _ = question.names
        return question

    def cost(self, trial: Trial, most: float) -> Cost:
        """The cost of a call, by its jaxpr."""
        formula: Any = self.op_at(trial).said("formula")
        cost: Cost = formula.cost([tuple(t.shape) for t in trial.tensors])
        return cost
