"""What is checked against what: functions and modules as functions of tensors alone."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from harness.check.inputs import Trial, torch_dtype
from harness.check.runs import Tensor
from harness.judging.orders import Function as Derived
from harness.judging.precisions import PRECISIONS
from harness.judging.reference import Reference, reference, reference_of_graph, wider
from harness.tracing import Graph, Traced, trace
from impls import catalogue, graph
from impls.backends._torchlike import ArrayNames
from impls.contract import Array, Op, Problem, as_tuple

Function = Callable[..., Any]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Call:
    """A function of tensors alone: the tensors among its arguments, then its state.

    `state` names what a module takes for its parameters and buffers.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: tuple[str, ...] = ()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors among what it returns."""
        flat, spec = tree_flatten((self.args, dict(self.kwargs)))
        given = iter(tensors)
        flat = [next(given) if isinstance(v, Tensor) else v for v in flat]
        args, kwargs = tree_unflatten(flat, spec)
        if isinstance(self.function, torch.nn.Module):
            state = dict(zip(self.state, given, strict=True))
            out = torch.func.functional_call(self.function, state, args, kwargs)
        else:
            out = self.function(*args, *given, **kwargs)
        return tuple(value for value in tree_leaves(out) if isinstance(value, Tensor))


@dataclass(frozen=True)
class Bound:
    """A subject at one trial: its tensors by name, and which need a gradient.

    `updated` are places of tensors that may be written to.
    """

    call: Call
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    wanted: tuple[bool, ...]
    key: Any = None
    updated: frozenset[int] = frozenset()


class TorchSubject:
    """A PyTorch function or module, its truth by tracing."""

    def __init__(self, given: Function) -> None:
        self.given, function = given, _uncompiled(given)
        self.function = function
        self.module = function if isinstance(function, torch.nn.Module) else None
        self.programs: dict[Any, Traced] = _shared(function)

    @property
    def own(self) -> Function:
        """What is judged without a candidate."""
        return self.given

    @property
    def name(self) -> str:
        """As a person would write it."""
        return name_of(self.function)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of a module's own tensors: those of its inputs have to fit."""
        return tuple({n for t in self._own().values() for n in t.shape})

    @property
    def size(self) -> int:
        """Elements of a module's own tensors."""
        return sum(tensor.numel() for tensor in self._own().values())

    def _own(self) -> State:
        if self.module is None:
            return {}
        return {
            **dict(self.module.named_parameters()),
            **dict(self.module.named_buffers()),
        }

    def bound(self, trial: Trial) -> Bound:
        """The tensors of a trial and of the module."""
        state = self._state(trial)
        call = Call(self.function, trial.args, trial.kwargs, tuple(state))
        flat = tree_leaves((trial.args, dict(trial.kwargs)))
        given = [value for value in flat if isinstance(value, Tensor)]
        plain = tuple(repr(value) for value in flat if not isinstance(value, Tensor))
        tensors = (*given, *state.values())
        key = (plain, *((t.dtype, tuple(t.shape)) for t in tensors))
        names = self._traced(key, trial).names
        return Bound(call, names, tensors, self._wanted(given, state), key)

    def _wanted(self, given: Sequence[Tensor], state: State) -> tuple[bool, ...]:
        """Floats, or those that the caller marked; and a module's parameters."""
        chosen = any(t.requires_grad for t in given)
        floats = [t.is_floating_point() for t in given]
        mine = [
            t.requires_grad if chosen else f for t, f in zip(given, floats, strict=True)
        ]
        own = dict(self.module.named_parameters()) if self.module else {}
        return (*mine, *(name in own and own[name].requires_grad for name in state))

    def _state(self, trial: Trial) -> State:
        """The module's tensors, mostly a little off: a bias of 0 hides much."""
        rng = np.random.default_rng([*trial.seed, 2])
        parameters = dict(self.module.named_parameters()) if self.module else {}
        state = {}
        for name, tensor in self._own().items():
            held = tensor.detach().to(trial.device)
            if held.is_floating_point():
                held = held.to(torch_dtype(trial.dtype))
                noise = torch.from_numpy(np.asarray(rng.standard_normal(held.shape)))
                shift = (0.1 * noise).to(held)
                if not trial.as_given:  # buffers: a variance stays positive, a mask 0
                    held = held + (shift if name in parameters else held * shift.abs())
            state[name] = held
        return state

    def _traced(self, key: Any, trial: Trial) -> Traced:
        if key not in self.programs:
            args, kwargs = tree_map(_on_cpu, (trial.args, dict(trial.kwargs)))
            function = self.function
            if self.module is not None:
                function = copy.deepcopy(self.module).to(
                    "cpu", torch_dtype(trial.dtype)
                )
            self.programs[key] = trace(function, args, kwargs)
        return self.programs[key]

    def truth(
        self,
        bound: Bound,
        cotangents: Sequence[Array | None],
        dtype: str,
        compute: str | None = None,
    ) -> tuple[Reference, tuple[str, ...]]:
        """The right outputs and gradients; names of those no path leads to."""
        traced = replace(self.programs[bound.key], tensors=bound.tensors, _made={})
        at = [n for n, w in zip(bound.names, bound.wanted, strict=True) if w]
        unreached: list[str] = []

        wide = wider(PRECISIONS[dtype])

        def build() -> dict[str, graph.Node]:
            made = traced.graph(wide)
            pairs = zip(traced.results, cotangents, strict=False)
            dy = {name: array for name, array in pairs if array is not None}
            gradients = made.gradients(dy, at)
            unreached[:] = [n for n, node in gradients.items() if node is None]
            all_gradients = {
                n: _or_zero(node, made, n) for n, node in gradients.items()
            }
            return {**all_gradients, **made.outputs}

        return reference_of_graph(build, dtype, compute), tuple(unreached)

    def second(
        self,
        bound: Bound,
        cotangents: Sequence[Array | None],
        tangents: Sequence[Array | None],
        order: str,
        dtype: str,
        compute: str | None = None,
    ) -> Reference:
        """The right tensors of a second order, along tangents of what is wanted."""
        traced = replace(self.programs[bound.key], tensors=bound.tensors, _made={})
        wide = wider(PRECISIONS[dtype])
        pairs = zip(traced.results, cotangents, strict=False)
        dy = {name: array for name, array in pairs if array is not None}
        along = _named(bound, tangents)

        def build() -> dict[str, graph.Node]:
            made = traced.graph(wide)
            outputs = {name: made.outputs[name] for name in dy}
            inputs = {name: made.leaves[name] for name in along}
            return Derived(outputs, inputs, dy, along).derivatives(order).nodes

        return reference_of_graph(
            build, dtype, compute, lambda: traced.graph(wide).outputs
        )

    def results(self, bound: Bound) -> tuple[str, ...]:
        """Names of what it returns, then of the buffers that it may have changed."""
        return self.programs[bound.key].results


class OpSubject:
    """An op with a formula, which is its truth."""

    lengths: tuple[int, ...] = ()
    size = 0

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
        return Bound(call, names, tensors, wanted, dict(trial.kwargs), state)

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
        dtype: str,
        compute: str | None = None,
    ) -> tuple[Reference, tuple[str, ...]]:
        """As `harness.judging.reference.reference` has it."""
        inputs = _arrays(bound)
        problem = Problem(self.op, inputs, cotangents, bound.key, dtype=dtype)
        return reference(problem, compute), ()

    def second(
        self,
        bound: Bound,
        cotangents: Sequence[Array | None],
        tangents: Sequence[Array | None],
        order: str,
        dtype: str,
        compute: str | None = None,
    ) -> Reference:
        """As `harness.judging.reference.reference` has it."""
        inputs = _arrays(bound)
        along = _named(bound, tangents)
        problem = Problem(
            *(self.op, inputs, cotangents, bound.key),
            dtype=dtype,
            order=order,
            tangents=along,
        )
        return reference(problem, compute)

    def results(self, bound: Bound) -> tuple[str, ...]:
        """The outputs of the page."""
        return self.op.outputs


def _arrays(bound: Bound) -> dict[str, Array]:
    pairs = zip(bound.names, bound.tensors, strict=True)
    return {name: array_of(tensor) for name, tensor in pairs}


def _named(bound: Bound, tangents: Sequence[Array | None]) -> dict[str, Array]:
    pairs = zip(bound.names, tangents, strict=True)
    return {name: v for name, v in pairs if v is not None}


Subject = TorchSubject | OpSubject


def subject_of(given: Any) -> Subject:
    """A reference in any of its forms.

    Raises:
        UnknownName: A name that no op page bears.
        TypeError: Neither a name, an `Op`, nor something that can be called.
    """
    if isinstance(given, str):
        return OpSubject(catalogue.load_op(given))
    if isinstance(given, Op):
        return OpSubject(given)
    if callable(given):
        return TorchSubject(given)
    raise TypeError(
        f"a reference is a function, a module, an Op or its name, no {given!r}"
    )


def _uncompiled(function: Function) -> Function:
    """What `torch.compile` was given: its result cannot be traced."""
    plain = getattr(function, "_torchdynamo_orig_callable", function)
    module: Function = getattr(plain, "_orig_mod", plain)
    return module


def _or_zero(node: graph.Node | None, made: Graph, name: str) -> graph.Node:
    """The gradient of a leaf to which no path leads is zero."""
    if node is not None:
        return node
    return graph.variable(np.zeros_like(made.leaves[name[1:]].value))


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value


def array_of(tensor: Tensor) -> Array:
    """A tensor in NumPy, which lacks bfloat16: float32 holds it."""
    held = tensor.detach().cpu()
    return np.asarray((held.float() if held.dtype == torch.bfloat16 else held).numpy())


def name_of(function: Any) -> str:
    """Module and name, without what Python puts around them."""
    if isinstance(function, functools.partial):
        given = ", ".join(f"{k}={v!r}" for k, v in function.keywords.items())
        return f"{name_of(function.func)}({given})" if given else name_of(function.func)
    if isinstance(function, torch.nn.Module):
        return f"{type(function).__name__} module"
    owner = getattr(function, "__self__", None)  # Function.apply is bound to its class
    if inspect.isclass(owner):
        return f"{owner.__qualname__}.{function.__name__}"
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    name = name.removeprefix("_VariableFunctionsClass.")  # of torch.softmax and others
    if module == "torch._C._nn":
        module = "torch.nn.functional"
    return f"{module}.{name}" if module.startswith("torch") else str(name)


def bind(candidate: Function, reference: Bound) -> Call:
    """The candidate as a function of the reference's tensors.

    A module gets the reference's parameters and buffers, by name, or in order where the
    names differ. A plain function gets them after the inputs.

    Raises:
        ValueError: They do not fit.
    """
    call = replace(reference.call, function=candidate)
    if not isinstance(candidate, torch.nn.Module):
        return call
    own = {
        **dict(candidate.named_parameters()),
        **dict(candidate.named_buffers()),
    }
    names = reference.call.state
    count = len(reference.tensors) - len(names)
    shapes = dict(
        zip(names, (tuple(t.shape) for t in reference.tensors[count:]), strict=True)
    )
    mine = {name.removeprefix("_orig_mod."): name for name in own}
    if set(mine) == set(names):
        state = tuple(mine[name] for name in names)
    elif [tuple(t.shape) for t in own.values()] == list(shapes.values()):
        state = tuple(own)
    else:
        raise ValueError(
            "the candidate's parameters are not the reference's: "
            f"{_listed({n: tuple(t.shape) for n, t in own.items()})}; expected "
            f"{_listed(shapes)}"
        )
    return replace(call, state=state)


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return (
        ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items()) or "none"
    )


_PROGRAMS: dict[Any, dict[Any, Traced]] = {}


def _shared(function: Function) -> dict[Any, Traced]:
    """Programs of PyTorch's own functions outlive a check; others may change."""
    plain = function.func if isinstance(function, functools.partial) else function
    module = getattr(plain, "__module__", None) or ""
    if isinstance(plain, torch.nn.Module) or module.split(".")[0] != "torch":
        return {}
    if not isinstance(function, functools.partial):
        return _PROGRAMS.setdefault(function, {})
    given = repr((function.args, sorted(function.keywords.items())))
    return _PROGRAMS.setdefault((plain, given), {})
