"""`trace`: a PyTorch function or module, and inputs, as a graph that can be judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch.utils._pytree import tree_leaves

from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.reference import wider
from gradwatch.harness.judging.rounding.analysis import ERROR, running_errors
from gradwatch.harness.judging.rounding.errors import (
    At,
    Error,
    limit_for,
    longest_reduction,
)
from gradwatch.harness.tracing.calls import Call, state_of, tensors_in
from gradwatch.harness.tracing.capture import capture
from gradwatch.harness.tracing.interpret import (
    Decision,
    interpret,
    refuse_uncovered,
)
from gradwatch.harness.tracing.names import parameters_of
from gradwatch.harness.tracing.rules.matrices import SIGNS, signs_show
from gradwatch.harness.tracing.tape import Program, name_of
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import array_of, constant, in_type, is_inexact
from gradwatch.impls.graph import Node, topological_order, variable

Array = NDArray[Any]
#: Draws of roundings by which a choice is tried. Of two floats that are just within
#: reach of each other one in four changes the order: all miss it in 1 % of cases.
DRAWS = 16
CONTESTED = "lies so near to where it decides otherwise that rounding may turn it"


@dataclass(frozen=True)
class Graph:
    """A traced function in the engine, evaluated in one type.

    Attributes:
        outputs: Results by name, then buffers that the call changed; nodes of floats,
            booleans or integers.
        leaves: What a gradient can be taken by: inputs, parameters, buffers of floats.
        read: Values that decided what ran: nodes and exact tensors.
        taken: Masks and whole numbers that depend on floats and choose elements.
        decisions: The operators that make such of floats.
    """

    outputs: Mapping[str, Node]
    leaves: Mapping[str, Node]
    read: tuple[Any, ...] = ()
    taken: tuple[Node, ...] = ()
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True)
class Traced:
    """The operators that a function ran, ready to be evaluated in any type.

    Attributes:
        program: The captured operators.
        names: A name for each of the program's inputs.
        tensors: The inputs themselves.
        results: Names of what the program returns.
        wanted: By which of the inputs a gradient is taken.
        ran: What each operator made where elements are chosen by that: in the inputs'
            own precision, not in that of the graph.
    """

    program: Program
    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    results: tuple[str, ...]
    wanted: tuple[bool, ...]
    again: Callable[[Sequence[float]], Program] = field(repr=False)
    ran: Mapping[Any, Any] = field(default_factory=dict, repr=False)

    def graph(self, dtype: DTypeLike = np.float64) -> Graph:
        """The graph for these inputs, evaluated in float64 or longdouble."""
        with in_type(np.dtype(dtype)) as taken:
            given = {n: _leaf(t) for n, t in zip(self.names, self.tensors, strict=True)}
            returned, *noted = interpret(self.program, list(given.values()), self.ran)
            outputs = {
                name: value if isinstance(value, Node) else variable(array_of(value))
                for name, value in zip(self.results, returned, strict=True)
                if value is not given.get(name)  # a buffer that the call left alone
            }
        leaves = {
            name: value for name, value in given.items() if isinstance(value, Node)
        }
        read, decisions = map(tuple, noted)
        return Graph(outputs, leaves, read, tuple(taken), decisions)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each place where a value decides what runs."""
        places = dict.fromkeys(str(r.place) for r in self.program.readings)
        said = "a value of the inputs decides here what runs; each trial has its own"
        return tuple(f"{place or 'in PyTorch'}: {said}" for place in places)

    def refuse_contested(self, dtype: str) -> None:
        """Raise Untraceable where rounding may turn around what decided what ran.

        A number that was read is moved as far as rounding may move it, to either side;
        then the same operators have to run.
        """
        self._refuse_free_signs()
        readings = self.program.readings
        if not readings:
            return
        read = self.graph(wider(PRECISIONS[dtype])).read
        moves = _moves([node for node in read if isinstance(node, Node)], dtype)
        shifts = []
        for reading, held in zip(readings, read, strict=True):
            off = moves.get(held) if isinstance(held, Node) else None
            number = isinstance(reading.value, float)
            shifts.append(float(off) if number and off is not None else 0.0)
            if not number and off is not None and np.any(off):
                raise Untraceable("a value", CONTESTED, "control", reading.place)
        if any(shifts):
            ran = self.program.signature()
            for sign in (1, -1):
                other = self.again([sign * shift for shift in shifts])
                if other.signature() != ran:
                    place = readings[0].place
                    raise Untraceable("a value", CONTESTED, "control", place)

    def as_run(self) -> Traced:
        """The same, but elements are chosen as in the precision of the inputs."""
        return replace(self, ran=self.program.ran(self.tensors))

    def contested(self, dtype: str) -> bool:
        """Whether rounding may turn around what chose elements, such as a topk.

        Floats are moved as far as rounding may move them, each at random to either
        side (see `DRAWS`).
        """
        made = self.graph(wider(PRECISIONS[dtype]))
        sources = [node for decision in made.decisions for node in decision.sources]
        moves = _moves([*made.taken, *sources], dtype)
        if any(np.any(moves[node]) for node in made.taken):
            return True
        rng = np.random.default_rng(0)
        for decision in made.decisions:
            here = {node: np.asarray(node.value, float) for node in decision.sources}
            if not all(np.isfinite(moves[node]).all() for node in here):
                return True
            right = decision.of({n: torch.from_numpy(a) for n, a in here.items()})
            for _ in range(DRAWS):
                moved = {
                    n: torch.from_numpy(a + moves[n] * rng.choice((-1.0, 1.0), a.shape))
                    for n, a in here.items()
                }
                if not all(map(torch.equal, right, decision.of(moved))):
                    return True
        return False

    def _refuse_free_signs(self) -> None:
        """Raise Untraceable where another algorithm's vectors give another result."""
        vectors = [op for op in self.ops if op in ("_linalg_eigh", "_linalg_svd")]
        if vectors and signs_show(lambda: self.graph().outputs.values()):
            raise Untraceable(f"aten.{vectors[0]}", SIGNS, "signs")

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ATen operators, each once, in order of first use."""
        calls = (n.target for n in self.program.graph.nodes if n.op == "call_function")
        return tuple(dict.fromkeys(name_of(t) for t in calls if hasattr(t, "_schema")))


def _moves(nodes: Sequence[Node], dtype: str) -> dict[Node, Array]:
    """How far rounding may move the elements of some nodes, and of all before them."""
    order = topological_order(nodes)
    arithmetic = arithmetics(dtype, None)[-1]
    limit = limit_for(longest_reduction(order))
    errors = running_errors(order, arithmetic, limit, {"sqrt": _root}).errors
    return {node: arithmetic.roundoff * error for node, error in errors.items()}


def _root(at: At) -> Error:
    """Also of what may be below zero: an honest root is nan there, or not negative."""
    error = ERROR["sqrt"](at)
    off = np.sqrt(at.v * at.v + at.u * at.e[0]) - at.v
    return np.where(np.isinf(error), np.maximum(off, at.v) / at.u + at.v, error)


def trace(
    function: Callable[..., Any] | torch.nn.Module,
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    state: Mapping[str, torch.Tensor] | None = None,
    seed: int = 0,
) -> Traced:
    """The operators that function(*inputs, **kwargs) runs for these inputs.

    Args:
        function: Any PyTorch function, or a module: its parameters and buffers become
            inputs, named as the module names them.
        inputs: Tensors, lists of them, or plain values; plain values are baked in.
            Gradients are by the floats among them, or by those that require one.
        kwargs: Likewise.
        state: In place of the module's own parameters and buffers.
        seed: Of what the function draws: that is a constant from then on.

    Raises:
        Untraceable: see harness/tracing/untraceable.py.
    """
    own = state_of(function)
    buffers: tuple[str, ...] = ()
    if isinstance(function, torch.nn.Module):
        buffers = tuple(dict(function.named_buffers()))
    state = own if state is None else state
    call = Call(function, tuple(inputs), dict(kwargs or {}), tuple(state))
    given = tensors_in((call.args, dict(call.kwargs)))
    names = (*_names(function, inputs, call.kwargs, state), *state)
    tensors = (*given, *state.values())
    for name, tensor in zip(names, tensors, strict=True):
        if tensor.layout != torch.strided:
            raise Untraceable(name, "is sparse", "sparse")
    wanted = [*wanted_of(given), *(own[n].requires_grad for n in state)]
    results: list[str] = []

    def run(*copies: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = call.returned(*copies)
        values = tensors_in(out)
        results[:] = (*_results(out, len(values)), *buffers)
        kept = dict(zip(names, copies, strict=True))
        return (*values, *(kept[name] for name in buffers))

    def again(shifts: Sequence[float] = ()) -> Program:
        return capture(run, tensors, wanted, shifts, seed)

    program = again()
    refuse_uncovered(program)
    return Traced(program, names, tensors, tuple(results), tuple(wanted), again)


def wanted_of(given: Sequence[torch.Tensor]) -> list[bool]:
    """By which inputs a gradient is taken: those that are marked, or else by floats."""
    marked = any(t.requires_grad for t in given)
    return [t.requires_grad if marked else is_inexact(t) for t in given]


def _results(out: Any, count: int) -> tuple[str, ...]:
    """Names of what a function returned: y, or keys, or y0, y1, ..."""
    if isinstance(out, Mapping) and len(out) == count:
        return tuple(map(str, out))
    return ("y",) if count == 1 else tuple(f"y{i}" for i in range(count))


def _names(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    taken: Mapping[str, Any],
) -> list[str]:
    """A name for each tensor among the inputs, as the function's signature says it."""
    forward = getattr(function, "forward", function)
    named = dict(zip(parameters_of(forward, len(inputs)), inputs, strict=True))
    names = []
    for name, value in {**named, **kwargs}.items():
        parts = tree_leaves(value)
        for i, part in enumerate(parts):
            if isinstance(part, torch.Tensor):
                plain = name if part is value else f"{name}[{i}]"
                names.append(f"input {plain}" if plain in taken else plain)
    return names


def _leaf(tensor: torch.Tensor) -> Any:
    """Of floats a leaf of the graph; whole numbers stay as they are."""
    if not is_inexact(tensor):
        return tensor.detach().cpu()
    return constant(array_of(tensor).copy())  # the caller may write to it
