"""A PyTorch function or module as a reference; its truth by tracing."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map, tree_map_only

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench
from gradwatch.harness.check.frameworks import Bound, Elsewhere, runs
from gradwatch.harness.check.frameworks.pytorch import require_fit
from gradwatch.harness.check.frameworks.runs import Tensor, floating
from gradwatch.harness.judging.orders import derivatives
from gradwatch.harness.judging.question import Cost, Question
from gradwatch.harness.tracing.calls import Call, state_of
from gradwatch.harness.tracing.capture import cost_of
from gradwatch.harness.tracing.traced import trace, wanted_of
from gradwatch.harness.tracing.untraceable import name_of
from gradwatch.impls import graph
from gradwatch.impls.contract import Array

State = dict[str, Tensor]

#: A step in float64, whose own error is about its square root: 1e-12, or 1e-8 by it.
STEP = 1e-6
#: Shares of a slope within which a difference quotient shows it.
NEAR = 1e-3


class TorchSubject:
    """A PyTorch function or module, its truth by tracing."""

    _last: tuple[Trial, Bound] | None = None

    def __init__(self, given: Callable[..., Any], beside: Any = None) -> None:
        # The function judged where there is no candidate, and the one that is traced:
        # that given to `torch.compile`, whose result has no trace.
        plain = getattr(given, "_torchdynamo_orig_callable", given)
        self.own, self.function = given, getattr(plain, "_orig_mod", plain)
        self.name, self._costs = name_of(self.function), dict[Any, Cost]()
        is_module = isinstance(self.function, torch.nn.Module)
        self.module: Any = self.function if is_module else None
        # Not the buffers that a call makes, nor a mask that the candidate does without.
        mine = state_of(self.function)
        other = beside.names if isinstance(beside, Elsewhere) else state_of(beside)
        theirs = {name.removeprefix("_orig_mod.") for name in other}
        kept = [n for n in mine if n not in theirs and 0 < len(theirs) != len(mine)]
        learns = any(isinstance(mine[n], torch.nn.Parameter) for n in kept)
        self.kept = [] if learns else kept
        self._names = {*mine}.difference(self.kept)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of a module's own tensors: those of its inputs have to fit."""
        return tuple({n for t in self.state.values() for n in t.shape})

    def cost(self, trial: Trial, most: float) -> Cost:
        """The cost of a call, counted up to `most`."""
        known = self._costs.get(_shapes(trial))
        if known is None or not (known.whole or known.work > most):
            self.admit(trial, most)
        return self._costs[_shapes(trial)]

    def admit(self, trial: Trial, most: float) -> None:
        """Run the reference at a trial and raise as it does; stop beyond `most`."""
        bound = self.bound(trial, traced=False)
        cost = cost_of(bound.call, bound.tensors, bound.wanted, most)
        self._costs[_shapes(trial)] = cost

    @property
    def state(self) -> State:
        """A module's parameters and buffers."""
        return {n: t for n, t in state_of(self.function).items() if n in self._names}

    def bound(self, trial: Trial, traced: bool = True) -> Bound:
        """The tensors of a trial and of the module, and the trace of the call."""
        if self._last and self._last[0] is trial:
            return self._last[1]
        state = self._state(trial)
        call = Call(self.function, trial.args, trial.kwargs, tuple(state))
        tensors = (*trial.tensors, *state.values())
        if not traced:
            learned = (t.requires_grad for t in self.state.values())
            return Bound(call, (), tensors, (*wanted_of(trial.tensors), *learned), ())
        function = self.function
        require_fit(function, trial.args, trial.kwargs)
        if self.module is not None and torch.device(trial.device).type != "cpu":
            function = copy.deepcopy(self.module).cpu()
        given = trial.args, dict(trial.kwargs), state
        args, kwargs, own = tree_map_only(
            Tensor, lambda t: t.detach().cpu().requires_grad_(t.requires_grad), given
        )
        ran = trace(function, args, kwargs, own, seed_of_draws(trial.seed))
        ran.refuse_contested(trial.dtype)
        draws, wanted, count = ran.program.draws, ran.wanted, len(trial.tensors)
        if trial.state is not None:
            wanted = (*(t.requires_grad for t in trial.tensors), *wanted[count:])
        call = replace(call, draws=draws, results=ran.results)
        bound = Bound(
            *(call, ran.names, tensors, wanted, ran.results),
            traced=ran,
            draws=tuple(draws),
        )
        self._last = trial, bound
        return bound

    def _state(self, trial: Trial) -> State:
        """The module's tensors, mostly perturbed: a bias of 0 hides mistakes."""
        if trial.state is not None:
            return dict(trial.state)
        rng = np.random.default_rng([*trial.seed, 2])
        parameters = dict(self.module.named_parameters()) if self.module else {}
        state = {}
        for name, tensor in self.state.items():
            held = trial.held(tensor).detach()
            if floating(held):
                noise = torch.from_numpy(np.asarray(rng.standard_normal(held.shape)))
                shift = (0.1 * noise).to(held)
                if not trial.as_given:  # buffers: a variance stays positive, a mask 0
                    held = held + (shift if name in parameters else held * shift.abs())
            state[name] = held
        return state

    def truth(
        self,
        bound: Bound,
        cotangents: Sequence[Array | None],
        tangents: Sequence[Array | None],
        trial: Trial,
        compute: str | None = None,
    ) -> Question:
        """The right tensors of the trial's order."""
        traced = bound.traced
        assert traced is not None
        at = [n for n, w in zip(bound.names, bound.wanted, strict=True) if w]
        pairs = zip(traced.results, cotangents, strict=False)
        dy = {name: array for name, array in pairs if array is not None}
        given = zip(bound.names, tangents, strict=True)
        along = {name: v for name, v in given if v is not None}
        unreached, second = list[str](), trial.order != "vjp"

        def build(wide: Any) -> dict[str, graph.Node]:
            made = traced.graph(wide)
            if any(made.outputs[name].shape != v.shape for name, v in dy.items()):
                made = traced.as_run().graph(wide)  # rounding decides the shapes
            outputs = {name: made.outputs[name] for name in dy}
            inputs = {name: made.leaves[name] for name in at}
            with graph.as_run(made.ran, runs.array_of):
                asked = trial.order, outputs, inputs, dy, along
                found, unreached[:] = derivatives(*asked)
            return {**found, **({} if second else made.outputs)}

        outputs = (lambda wide: dict(traced.graph(wide).outputs)) if second else None
        return Question(build, trial.dtype, compute, outputs, unreached)

    def steps_have_its_slope(self, trial: Trial) -> bool:
        """Whether the steps of the forward have the slope of its values, in float64.

        They have another one where it rounds, or looks for a root by bisection. A
        detach is intended, except where an `autograd.Function` runs or a hook makes it.
        """

        def widened(value: Any) -> Any:
            if not floating(value):
                return value
            return value.detach().to(torch.promote_types(value.dtype, torch.float64))

        args, kwargs = tree_map(widened, (trial.args, dict(trial.kwargs)))
        wide = replace(trial, args=args, kwargs=kwargs, dtype="float64", order="vjp")
        try:
            bench = Bench(self, None, wide)
        except RuntimeError:  # what makes tensors of float32 runs in that type alone
            return True
        bound, call, cotangents = bench.bound, bench.call, bench.cotangents()
        pairs = enumerate(zip(bound.tensors, bound.wanted, strict=True))
        moved = [wide.tangent(t, i) if wanted else None for i, (t, wanted) in pairs]

        def product(these: Iterable[Any], others: Iterable[Any]) -> float:
            pairs = zip(these, others, strict=False)
            both = ((a, b) for a, b in pairs if a is not None and b is not None)
            return sum(float(np.sum(a * runs.array_of(b))) for a, b in both)

        def value(step: float) -> float:
            pairs = zip(bound.tensors, moved, strict=True)
            outputs = call(*(t if v is None else t + step * v for t, v in pairs))
            return product(map(runs.array_of, outputs), cotangents)

        with torch.no_grad():
            seen = (value(STEP) - value(-STEP)) / (2 * STEP)

        def shows(gradients: Iterable[Any]) -> bool:
            slope = product(gradients, moved)
            return abs(seen - slope) <= NEAR * (abs(seen) + abs(slope))

        nodes = bench.truth(cotangents).right.graphs["first"]
        right = (nodes.get(f"d{name}") for name in bound.names)
        if shows(None if node is None else node.value for node in right):
            return True
        own = torch.autograd.function.BackwardCFunction
        behind = runs.nodes_behind(bench.expected.outputs)
        if any(isinstance(node, own) for node in behind):
            return False
        found = runs.Graph(call, bound.tensors, bound.wanted).backward(cotangents)
        return not shows(None if g is None else runs.array_of(g) for g in found)


def seed_of_draws(seed: Sequence[int]) -> int:
    """The seed of the random numbers that a function draws in a trial."""
    return int(np.random.default_rng([*seed, 3]).integers(2**31))


def _shapes(trial: Trial) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(tensor.shape) for tensor in trial.tensors)
