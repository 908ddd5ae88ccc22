"""`trace`: a PyTorch function or module, and inputs, as a graph that can be judged."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import fx
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.reference import wider
from gradwatch.harness.judging.rounding import analysis
from gradwatch.harness.tracing.aten import (
    complex,
    elementwise,
    matrices,
    moves,
    reductions,
    windows,
)
from gradwatch.harness.tracing.aten.moves import ON_SPARSE, is_move, move
from gradwatch.harness.tracing.calls import Call, receiver, state_of, tensors_in
from gradwatch.harness.tracing.capture import capture
from gradwatch.harness.tracing.rules.matrices import SIGNS, signs_show
from gradwatch.harness.tracing.tape import (
    FACTORIES,
    Geometry,
    Program,
    as_written,
    name_of,
)
from gradwatch.harness.tracing.untraceable import Untraceable, parameters_of
from gradwatch.harness.tracing.values import (
    Complex,
    array_of,
    as_exact,
    as_float,
    as_it_ran,
    both,
    constant,
    fact,
    finer,
    in_type,
    is_inexact,
    joined,
    leaf,
    narrow,
    parts,
    rounded,
    table,
    written_over,
)
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, rounded_to, topological_order, variable

Array = NDArray[Any]
#: Draws of roundings with which a choice is tested. If two floats are just within reach
#: of each other, one draw in four changes their order: all miss it in 1 % of cases.
DRAWS = 16
#: Runs that choose otherwise: an open element is the same in all in 1 of 100 cases.
OTHERS = 7
CONTESTED = "lies so near to where it decides otherwise that rounding may turn it"
Rule = Callable[..., Any]
#: Rules that get every tensor argument as a node of floats.
ON_FLOATS: dict[str, Rule] = matrices.ON_FLOATS | windows.ON_FLOATS
ON_FLOATS |= elementwise.ON_FLOATS | reductions.ON_FLOATS
#: Rules that get nodes, exact tensors and numbers as they come.
ON_VALUES: dict[str, Rule] = matrices.ON_VALUES | moves.ON_VALUES
ON_VALUES |= elementwise.ON_VALUES | reductions.ON_VALUES
COVERED = {*ON_FLOATS, *ON_VALUES, *moves.MOVES, *complex.ON_COMPLEX}
_OURS = (operator.getitem, as_written)  # of the tape, no operators of ATen
_CASTS = frozenset(("_to_copy", "convert_element_type", "to", "type_as", "device_put"))
_KEEP_ZEROS = ("clone", "detach", "mul", "neg", "permute", "_sparse_sum", "transpose")
_TABLES = {name for name in FACTORIES if name.endswith("_window")} | {"linspace"}
_FACTORISATIONS = ("linalg_", "_linalg_", "cholesky", "geqrf", "lu_", "ormqr", "svd")


@dataclass(frozen=True)
class Graph:
    """A traced function in the engine, evaluated in one type.

    Attributes:
        outputs: Results by name, then buffers that the call changed; nodes of floats,
            booleans or integers.
        leaves: The inputs, parameters and buffers of floats: gradients are by these.
        read: Values that decided which operators ran: nodes and exact tensors.
        ran: Nodes' tensors from the run that decides choices, if one does.
    """

    outputs: Mapping[str, Node]
    leaves: Mapping[str, Node]
    read: tuple[Any, ...] = ()
    ran: Mapping[Node, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Traced:
    """The operators that a function ran, ready to be evaluated in any type.

    Attributes:
        program: The captured operators.
        names: A name for each of the program's inputs.
        tensors: The inputs themselves.
        results: Names of the program's results.
        wanted: For each input whether a gradient is taken by it.
        ran: Each operator's result in the inputs' own precision, if that and not the
            graph's decides which elements are chosen.
        facts: Operators whose results in that run are the graph's own values, with the
            machine epsilon of the type in which they are kept.
    """

    program: Program
    names: tuple[str, ...]
    tensors: tuple[torch.Tensor, ...]
    results: tuple[str, ...]
    wanted: tuple[bool, ...]
    again: Callable[[Sequence[float]], Program] = field(repr=False)
    ran: Mapping[Any, Any] = field(default_factory=dict, repr=False)
    facts: Mapping[Any, float] = field(default_factory=dict, repr=False)

    def graph(self, dtype: DTypeLike = np.float64) -> Graph:
        """The graph for these inputs, evaluated in float64 or longdouble."""
        with in_type(np.dtype(dtype)) as ran, graph.as_run(ran, array_of):
            # Copies, as the caller may write to its tensors: widening makes one.
            own = (t.clone() if t.itemsize > 4 else t for t in self.tensors)
            given = {
                n: constant(array_of(t)) if is_inexact(t) else t.cpu()
                for n, t in zip(self.names, own, strict=True)
            }
            returned, read = interpret(self, [*given.values()])
            outputs = {
                name: value if isinstance(value, Node) else variable(array_of(value))
                for name, value in zip(self.results, returned, strict=True)
                if value is not given.get(name)  # a buffer that the call left alone
            }
        leaves = {name: n for name, n in given.items() if isinstance(n, Node)}
        return Graph(outputs, leaves, tuple(read), ran)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each place where a value decides which operators run."""
        places = dict.fromkeys(str(r.place) for r in self.program.readings)
        said = "a value of the inputs decides here what runs; each trial has its own"
        return tuple(f"{place or 'in PyTorch'}: {said}" for place in places)

    def refuse_contested(self, dtype: str) -> None:
        """Raise Untraceable where rounding may change which operators run.

        Each number that was read is moved as far as rounding may move it, to either
        side; then the same operators have to run. Results that change with the signs of
        singular vectors or eigenvectors are refused, too.
        """
        vectors = [op for op in self.ops if op in ("_linalg_eigh", "_linalg_svd")]
        if vectors and signs_show(lambda: self.graph().outputs.values()):
            raise Untraceable(f"aten.{vectors[0]}", SIGNS, "signs")
        readings = self.program.readings
        if not readings:
            return
        read = self.graph(wider(PRECISIONS[dtype])).read
        order = topological_order([node for node in read if isinstance(node, Node)])
        arithmetic = arithmetics(dtype, None)[-1]
        _, limit = analysis.limits(order)
        errors = analysis.running_errors(
            order, arithmetic, limit, {"sqrt": _root}
        ).errors
        shifts = []
        for reading, held in zip(readings, read, strict=True):
            error = errors.get(held, 0.0) if isinstance(held, Node) else 0.0
            number = isinstance(reading.value, float)
            shifts.append(arithmetic.step.roundoff * float(error) if number else 0.0)
            if not number and np.any(error):
                raise Untraceable("a value", CONTESTED, "control", reading.place)
        if any(shifts):
            ran = self.program.signature()
            for sign in (1, -1):
                other = self.again([sign * shift for shift in shifts])
                if other.signature() != ran:
                    place = readings[0].place
                    raise Untraceable("a value", CONTESTED, "control", place)

    def as_run(self, reach: float = 0.0, rng: Any = None) -> Traced:
        """The same function, with elements chosen as in the precision of the inputs.

        Each intermediate number is moved at random, by up to `reach` times itself;
        whole numbers, such as positions, are exact.
        """

        def moved(made: torch.Tensor) -> torch.Tensor:
            most = 1 / torch.finfo(made.dtype).eps
            if not made.is_complex() and made.equal(made.round().clamp(-most, most)):
                return made
            share = 1 + reach * rng.uniform(-1, 1, made.shape)
            return made * torch.from_numpy(np.asarray(share)).to(made)

        return replace(self, ran=self.program.ran(self.tensors, rng and moved))

    def keeping(self, saved: Sequence[torch.Tensor]) -> Traced:
        """The same function, with the values that a candidate saves for its backward.

        An operator's result is the nearest saved tensor within a unit in the last place
        as a whole, if no other result is nearer to that: what a sort returns is not
        what it sorts. The next one starts from there. In a coarser type, as statistics
        of a norm are saved, each element has to be so near.
        """
        # Factors fit each other to the last bit, and not what they are computed from.
        factors = any(op.startswith(_FACTORISATIONS) for op in self.ops)
        plain = [t for t in saved if t.layout == torch.strided and not factors]
        floats = [t for t in plain if t.dtype.is_floating_point]
        kept = [(torch.finfo(t.dtype).eps, array_of(t).squeeze()) for t in floats]
        known, least = dict[int, float](), [np.inf] * len(kept)

        @np.errstate(invalid="ignore")
        def nearest(made: torch.Tensor, first: bool = False) -> torch.Tensor:
            if made.is_complex() or made.layout != torch.strided:
                return made
            here, own = array_of(made).squeeze(), torch.finfo(made.dtype).eps
            size, near = np.where(np.isfinite(here), np.abs(here), 0.0), []
            whole = float(np.linalg.norm(size))
            for i, (eps, there) in enumerate(kept):
                if there.shape == here.shape and eps >= own:
                    off = np.where(there == here, 0.0, np.abs(there - here))
                    far = float(np.linalg.norm(off))
                    least[i] = min(least[i], far) if first else least[i]
                    most = min(least[i], eps * whole)
                    if far <= most and (eps == own or (off <= eps * size).all()):
                        near.append((eps, far, there.reshape(made.shape)))
            if first or not near:
                return made
            eps, _, one = min(near, key=operator.itemgetter(0, 1))
            found = torch.empty_like(made).copy_(torch.from_numpy(one))
            known[id(found)] = eps
            return found

        self.program.ran(self.tensors, functools.partial(nearest, first=True))
        ran = self.program.ran(self.tensors, nearest)
        facts = {n: known[id(was)] for n, was in ran.items() if id(was) in known}
        return replace(self, ran=ran, facts=facts)

    def turned(self, dtype: str) -> list[Traced]:
        """Runs in which rounding changes a choice of elements, such as a topk's.

        Whole numbers, masks and places of chosen values are compared with those of
        `DRAWS` runs, all floats moved as far as rounding may. Counts are floats.
        """

        def whole(node: fx.Node, run: Traced) -> list[bytes]:
            made, known = run.ran[node], reductions.ON_VALUES
            asked = not isinstance(made, tuple) or name_of(node.target) in known
            held = (t for t in tensors_in(made) if asked and not is_inexact(t))
            return [array_of(t).tobytes() for t in held]

        counts = {"histc", "histogram"}.intersection(self.ops)
        calls = [n for n in self.program.graph.nodes if n.op == "call_function"]
        if not counts and all(is_inexact(like) for n in calls for like in _meta(n)):
            return []  # nothing is chosen
        reach = analysis.limit_for(1) * arithmetics(dtype, None)[-1].step.roundoff
        rng, right, found = np.random.default_rng(0), self.as_run(), list[Traced]()
        chosen = {n: y for n in calls if n.users and (y := whole(n, right))}
        for _ in range(DRAWS if chosen or counts else 0):
            try:
                run = self.as_run(reach, rng)
                same = all(y == whole(n, run) for n, y in chosen.items())
            except Exception:  # noqa: BLE001  # another number of elements
                run, same = right, False
            found += [] if same and not counts else [run]
            if len(found) == OTHERS:
                break  # each has all numbers of a run
        return found

    @property
    def ops(self) -> tuple[str, ...]:
        """Names of the ATen operators, each once, in order of first use."""
        calls = (n.target for n in self.program.graph.nodes if n.op == "call_function")
        return tuple(dict.fromkeys(name_of(t) for t in calls if hasattr(t, "_schema")))


def _root(at: analysis.At) -> analysis.Error:
    """E of a root, also of a value that may be negative: it is nan, or at least 0."""
    error = analysis.RULES["sqrt"].error(at)
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
        kwargs: Keyword arguments, likewise.
        state: In place of the module's own parameters and buffers.
        seed: For the function's random numbers, which are constants in the graph.

    Raises:
        Untraceable: see harness/tracing/untraceable.py.
    """
    own = state_of(function)
    state = own if state is None else state
    buffers = [n for n in state if not isinstance(own[n], torch.nn.Parameter)]
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
        plain = ["y"] if len(values) == 1 else [f"y{i}" for i in range(len(values))]
        named = isinstance(out, Mapping) and len(out) == len(values)
        kept = dict(zip(names, copies, strict=True))
        pairs = zip(map(str, out) if named else plain, values, strict=True)
        ends = (n if kept.get(n) is not v else f"{n} itself" for n, v in pairs)
        results[:] = (*ends, *buffers)
        return (*values, *(kept[name] for name in buffers))

    def again(shifts: Sequence[float] = ()) -> Program:
        return capture(run, tensors, wanted, shifts, seed)

    program = again()
    for node in program.graph.nodes:
        if node.op == "call_function":
            rule_of(node)
    return Traced(program, names, tensors, tuple(results), tuple(wanted), again)


def wanted_of(given: Sequence[torch.Tensor]) -> list[bool]:
    """For each input whether it is differentiated: if it requires it, or all floats."""
    marked = any(t.requires_grad for t in given)
    return [t.requires_grad if marked else is_inexact(t) for t in given]


def _names(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    kwargs: Mapping[str, Any],
    taken: Mapping[str, Any],
) -> list[str]:
    """A name for each tensor among the inputs, from the function's signature."""
    forward, ahead = receiver(function)
    parameters = parameters_of(forward, len(inputs), ahead)
    named = dict(zip(parameters, inputs, strict=True))
    names = []
    for name, value in {**named, **kwargs}.items():
        for i, part in enumerate(tree_leaves(value)):
            if isinstance(part, torch.Tensor):
                plain = name if part is value else f"{name}[{i}]"
                names.append(f"input {plain}" if plain in taken else plain)
    return names


# From a captured program to the graph -------------------------------------------------


def interpret(traced: Traced, leaves: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The program's results, and the values it read (nodes, exact tensors).

    Where it has `ran`, its results then decide whole numbers, masks and kinks; those
    that are `facts` are the values themselves.
    """
    program, ran, facts = traced.program, traced.ran, traced.facts
    known: dict[Any, Any] = {}
    record = graph.recorded()
    given, untouched = iter(leaves), {}
    inputs = (node for node in program.graph.nodes if node.op == "placeholder")
    types = {like.dtype for node in inputs for like in _meta(node) if is_inexact(like)}
    widest = min((torch.finfo(dtype).eps for dtype in types), default=0.0)
    for node in program.graph.nodes:
        if node.op == "placeholder":
            untouched[node], (like,) = next(given), _meta(node)
            known[node] = _narrowed(leaf, untouched[node], [like], widest)
            if like.dtype.is_complex:
                known[node] = Complex.split(known[node])
        elif node.op == "get_attr":
            kept = getattr(program, node.target)
            kept = kept if kept.layout == torch.strided else kept.to_dense()
            with rounded_to(_finer(node, widest) or ""):
                known[node] = _cast(kept, kept.dtype)
        elif node.op == "output":
            read = [joined(known[reading.node]) for reading in program.readings]
            known |= untouched
            return [joined(known[out]) for out in node.args[0]], read
        else:
            known[node] = _result(node, known, widest)
            if node in facts and isinstance(known[node], Node):
                value = array_of(ran[node]).astype(known[node].dtype)
                with rounded_to(finer(facts[node], widest)):
                    known[node] = fact(known[node], value=value)
            known[node] = as_it_ran(known[node], ran.get(node))
            if record:
                for made in parts(known[node]):
                    record.places.setdefault(made, node.meta.get("place"))
    raise AssertionError("a program ends with its output")


def _narrowed(how: Any, value: Any, meta: Sequence[Geometry], widest: float) -> Any:
    """An operator's result, each part rounded to the dtype that it had in the run."""
    if isinstance(value, (tuple, list)) and len(value) == len(meta):
        pairs = zip(value, meta, strict=True)
        return tuple(_narrowed(how, one, [its], widest) for one, its in pairs)
    if not meta or not is_inexact(meta[0]):
        return value
    return narrow(how, value, torch.finfo(meta[0].dtype), widest)


def _result(node: fx.Node, known: Mapping[Any, Any], widest: float) -> Any:
    """An operator's result, rounded to the type that it had in the run.

    The cotangent of an operand that is coarser is rounded to the operand's type.
    """
    own, read = _finer(node, widest), {s: known[s] for s in node.all_input_nodes}
    types = {source: _finer(source, widest) for source in read}
    if own:
        coarse = [source for source, of in types.items() if of == ""]
        read |= {s: narrow(leaf, known[s], None, widest) for s in coarse}
    args = map_arg(node.args, read.__getitem__)
    kwargs = map_arg(node.kwargs, read.__getitem__)
    with rounded_to(own or ""):
        made = rule_of(node)(*args, **kwargs)
    if node.target in _OURS or is_move(name_of(node.target)):
        return made
    if any(types.values()) and own == "":
        made = narrow(rounded, made, None, widest)
    return _narrowed(rounded, made, _meta(node), widest)


def _finer(node: fx.Node, widest: float) -> str | None:
    """The precision of a result, if it is finer than all inputs'; None without floats.

    Inside an operator no type is finer than its operands: that is its own affair.
    """
    eps = [torch.finfo(like.dtype).eps for like in _meta(node)[:1] if is_inexact(like)]
    return finer(max(*eps, node.meta.get("finest", 0.0)), widest) if eps else None


def rule_of(node: fx.Node) -> Rule:
    """The rule of a captured operator, for nodes, exact tensors and numbers.

    Raises:
        Untraceable: The engine has no rule for it.
    """
    target, meta = node.target, _meta(node)
    every = [*meta, *(like for made in node.all_input_nodes for like in _meta(made))]
    if target is operator.getitem:
        return operator.getitem
    if target is as_written:
        kind: Rule = Complex.of if meta[0].dtype.is_complex else as_float
        return lambda *given: both(written_over, *map(kind, given))
    if reason := _refusal(target, meta, every):
        op = str(target).removesuffix(".default")
        if isinstance(target, torch._ops.OpOverload):
            op = f"{target.namespace}.{name_of(target)}"
        raise Untraceable(op, *reason, node.meta["place"])
    name, rule = name_of(target), functools.partial(_by_table, target)
    if meta and name in _CASTS:
        return lambda value, *_, **__: _cast(value, meta[0].dtype)
    if meta and name in FACTORIES:
        return functools.partial(_made, target, meta[0].dtype)
    if any(like.dtype.is_complex for like in every):
        rule = functools.partial(complex.apply, target, name, rule)
    elif not any(map(is_inexact, meta)):  # no gradient flows through it
        rule = functools.partial(_decided, target, meta)
    return rule


def _refusal(
    target: Any, meta: Sequence[Geometry], every: Sequence[Geometry]
) -> tuple[str, str] | None:
    """The reason why the engine has no rule for an operator, and its kind."""
    if not isinstance(target, torch._ops.OpOverload):
        return "is no operator of ATen", "no rule"
    name = name_of(target)
    has_rule = name in ON_FLOATS or name in ON_VALUES
    if not meta:  # a check, which returns nothing
        return None
    if torch.Tag.nondeterministic_seeded in target.tags:
        return "hides what it draws at random", "random"
    if name.startswith(_FACTORISATIONS) and not has_rule:
        return "factorises a matrix", "factorisation"
    sparse = any(like.layout != torch.strided for like in meta)
    if sparse and name not in {*ON_SPARSE, *_KEEP_ZEROS}:
        return "returns a sparse tensor", "sparse"
    if name in FACTORIES or name in _CASTS:
        return None
    if any(like.dtype.is_complex for like in every):
        known = complex.has_rule(name)
        return None if known else ("has no rule for complex numbers", "complex")
    known = has_rule or is_move(name) or not any(map(is_inexact, meta))
    return None if known else ("has no rule in the engine", "no rule")


def _by_table(target: Any, /, *args: Any, **kwargs: Any) -> Any:
    name = name_of(target)
    if name in ON_FLOATS:
        tensors, tree = (Node, torch.Tensor), (args, kwargs)
        args, kwargs = tree_map_only(tensors, as_float, tree)
        return ON_FLOATS[name](*args, **kwargs)
    if name in ON_VALUES:
        return ON_VALUES[name](*args, **kwargs)
    return move(target, args, kwargs)


def _decided(target: Any, meta: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Booleans of nodes, by their rule; an order or a count is computed exactly."""
    name, values = name_of(target), tree_leaves((args, kwargs))
    truth = meta and meta[0].dtype == torch.bool
    by_floats = any(isinstance(value, Node) for value in values)
    if truth and by_floats and (name in ON_FLOATS or name in ON_VALUES):
        return _by_table(target, *args, **kwargs)
    args, kwargs = tree_map(as_exact, (args, kwargs))
    return target(*args, **kwargs)


def _meta(node: fx.Node) -> list[Geometry]:
    """The geometries of the tensors that an operator returned in the captured run."""
    return [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, Geometry)]


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """A value cast to a dtype; another precision of floats changes nothing here."""
    if dtype.is_complex:
        return Complex.of(value)
    if dtype.is_floating_point:
        return value.re if isinstance(value, Complex) else as_float(value)
    if isinstance(value, Node) and dtype == torch.bool:
        return ON_VALUES["logical_or"](value, value)
    return as_exact(value).to(dtype)


def _made(target: Any, dtype: torch.dtype, /, *args: Any, **kwargs: Any) -> Any:
    """The tensor of a factory; if of floats, in the widest type that PyTorch has."""
    args = tree_map(as_exact, args)
    if dtype.is_complex:
        return Complex.of(target(*args, **{**kwargs, "dtype": torch.complex128}))
    if not dtype.is_floating_point:
        return target(*args, **kwargs)
    name = name_of(target)  # a number is one of the type that is filled with it
    held = dtype if "full" in name or name == "scalar_tensor" else torch.float64
    leaf = constant(target(*args, **{**kwargs, "dtype": held}).double().numpy())
    # Each element of a window or a grid has roundings of the largest element's size.
    return table(leaf, info=torch.finfo(dtype)) if name in _TABLES else leaf
