"""`trace`: a PyTorch function or module, and inputs, as a graph that can be judged."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import fx
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from gradwatch.harness.tracing.capture import capture, line_that_calls
from gradwatch.harness.tracing.interpret import interpret, name_of, refuse_uncovered
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import array_of, constant, in_type
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]


@dataclass(frozen=True)
class Graph:
    """A traced function in the engine, evaluated in one type.

    Attributes:
        outputs: Results by name, then buffers that the call changed; nodes of floats,
            booleans or integers.
        leaves: What a gradient can be taken by: inputs, parameters, buffers of floats.
    """

    outputs: Mapping[str, Node]
    leaves: Mapping[str, Node]

    def gradients(
        self, cotangents: Mapping[str, Array], wanted: Sequence[str] | None = None
    ) -> dict[str, Node | None]:
        """The gradient by each wanted leaf (all, if not said), named "d" + its name.

        Args:
            cotangents: An array for each output that one is given for; outputs that
                are left out get none.
            wanted: Names of leaves.

        Returns:
            A node of the leaf's shape; None where no path leads to it.
        """
        wanted = list(self.leaves) if wanted is None else list(wanted)
        outputs = [self.outputs[name] for name in cotangents]
        leaves = [self.leaves[name] for name in wanted]
        nodes = graph.gradient(outputs, list(cotangents.values()), leaves)
        return {f"d{name}": node for name, node in zip(wanted, nodes, strict=True)}


@dataclass(frozen=True)
class Traced:
    """The operators that a function ran, ready to be evaluated in any type.

    Attributes:
        program: The captured operators.
        names: A name for each of the program's inputs.
        tensors: The inputs themselves.
        results: Names of what the program returns.
    """

    program: fx.GraphModule
    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    results: tuple[str, ...]
    _made: dict[Any, Graph] = field(default_factory=dict, repr=False)

    def graph(self, dtype: DTypeLike = np.float64) -> Graph:
        """The graph for these inputs, evaluated in float64 or longdouble."""
        with in_type(np.dtype(dtype)):
            given = {n: _leaf(t) for n, t in zip(self.names, self.tensors, strict=True)}
            returned = interpret(self.program, list(given.values()))
            outputs = {
                name: _node(value)
                for name, value in zip(self.results, returned, strict=True)
                if value is not given.get(name)  # a buffer that the call left alone
            }
        leaves = {
            name: value for name, value in given.items() if isinstance(value, Node)
        }
        return Graph(outputs, leaves)

    @functools.cached_property
    def _double(self) -> Graph:
        return self.graph(np.float64)

    @property
    def outputs(self) -> Mapping[str, Node]:
        """Of the graph in float64."""
        return self._double.outputs

    @property
    def leaves(self) -> Mapping[str, Node]:
        """Of the graph in float64."""
        return self._double.leaves

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ATen operators, each once, in order of first use."""
        calls = (n.target for n in self.program.graph.nodes if n.op == "call_function")
        return tuple(dict.fromkeys(name_of(t) for t in calls if hasattr(t, "_schema")))

    def gradients(
        self,
        cotangents: Mapping[str, Array],
        dtype: DTypeLike = np.float64,
        wanted: Sequence[str] | None = None,
    ) -> dict[str, Node | None]:
        """`Graph.gradients`, in a graph made for this type."""
        return self.graph(dtype).gradients(cotangents, wanted)


def trace(
    function: Callable[..., Any] | torch.nn.Module,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Traced:
    """The operators that function(*inputs, **kwargs) runs, for inputs like these.

    Args:
        function: Any PyTorch function, or a module: its parameters and buffers become
            inputs, named as the module names them.
        inputs: Tensors, lists of them, or plain values; plain values are baked in.
        kwargs: Likewise.

    Raises:
        Untraceable: see harness/tracing/untraceable.py.
    """
    flat, spec = tree_flatten((tuple(inputs), dict(kwargs or {})))
    places = [i for i, value in enumerate(flat) if isinstance(value, torch.Tensor)]
    state, buffers = _state(function)
    names = (*_names(function, inputs, kwargs or {}, state), *state)
    tensors = tuple(flat[i] for i in places) + tuple(state.values())
    for name, tensor in zip(names, tensors, strict=True):
        _refuse(name, tensor)
    call = _Call(function, flat, spec, places, tuple(state), buffers)
    program = _captured(call, tensors)
    return Traced(program, names, tensors, (*call.results, *buffers))


def _captured(call: _Call, tensors: Sequence[torch.Tensor]) -> fx.GraphModule:
    """Of copies, since a call may write into its inputs and buffers."""
    program = capture(call, [tensor.detach().clone() for tensor in tensors])
    try:
        refuse_uncovered(program)
    except Untraceable as no:
        copies = [tensor.detach().clone() for tensor in tensors]
        line = line_that_calls(no.op, call, copies)
        raise Untraceable(no.op, no.why, no.kind, line) from None
    return program


@dataclass
class _Call:
    """The function of tensors alone that is captured: everything else is baked in."""

    function: Callable[..., Any]
    flat: list[Any]
    spec: TreeSpec
    places: list[int]
    state: tuple[str, ...]
    buffers: tuple[str, ...]
    results: tuple[str, ...] = ()

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        flat = list(self.flat)
        for place, tensor in zip(self.places, tensors, strict=False):
            flat[place] = tensor
        args, kwargs = tree_unflatten(flat, self.spec)
        state = dict(zip(self.state, tensors[len(self.places) :], strict=True))
        if isinstance(self.function, torch.nn.Module):
            out = torch.func.functional_call(self.function, state, args, kwargs)
        else:
            out = self.function(*args, **kwargs)
        self.results, values = _results(out)
        return (*values, *(state[name] for name in self.buffers))


def _results(out: Any) -> tuple[tuple[str, ...], list[torch.Tensor]]:
    """Names and tensors of what a function returned: y, or keys, or y0, y1, ..."""
    values = [v for v in tree_leaves(out) if isinstance(v, torch.Tensor)]
    if isinstance(out, Mapping) and len(out) == len(values):
        return tuple(map(str, out)), values
    names = ("y",) if len(values) == 1 else tuple(f"y{i}" for i in range(len(values)))
    return names, values


def _state(
    function: Callable[..., Any],
) -> tuple[dict[str, torch.Tensor], tuple[str, ...]]:
    """A module's parameters and buffers by name, and which of them are buffers."""
    if not isinstance(function, torch.nn.Module):
        return {}, ()
    parameters, buffers = (
        dict(function.named_parameters()),
        dict(function.named_buffers()),
    )
    return {**parameters, **buffers}, tuple(buffers)


def _names(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    taken: Mapping[str, Any],
) -> list[str]:
    """A name for each tensor among the inputs, as the function's signature says it."""
    forward = getattr(function, "forward", function)
    named = dict(zip(_parameters(forward, len(inputs)), inputs, strict=True))
    names = []
    for name, value in {**named, **kwargs}.items():
        parts = tree_leaves(value)
        for i, part in enumerate(parts):
            if isinstance(part, torch.Tensor):
                plain = name if part is value else f"{name}[{i}]"
                names.append(f"input {plain}" if plain in taken else plain)
    return names


def _parameters(function: Callable[..., Any], count: int) -> list[str]:
    """Names of the first positional parameters; x0, x1, ... where there are none."""
    try:
        known = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # most of torch's own functions have no signature
        known = []
    names = [
        p.name for p in known if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    if len(names) >= count:
        return names[:count]
    return ["x"] if count == 1 else [f"x{i}" for i in range(count)]


def _refuse(name: str, tensor: torch.Tensor) -> None:
    if tensor.is_complex():
        raise Untraceable(name, "is complex", "complex")
    if tensor.layout != torch.strided:
        raise Untraceable(name, "is sparse", "sparse")


def _leaf(tensor: torch.Tensor) -> Any:
    """Of floats a leaf of the graph; whole numbers stay as they are."""
    if not tensor.is_floating_point():
        return tensor.detach().cpu()
    return constant(array_of(tensor))


def _node(value: Any) -> Node:
    if isinstance(value, Node):
        return value
    return graph.variable(array_of(value))
