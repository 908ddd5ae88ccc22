"""Walks a captured program and builds the engine's graph of it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx.node import Node as Call
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from gradwatch.harness.tracing.aten import (
    complex,
    elementwise,
    matrices,
    moves,
    reductions,
    segments,
    windows,
)
from gradwatch.harness.tracing.aten.moves import ON_SPARSE, is_move, move
from gradwatch.harness.tracing.tape import (
    FACTORIES,
    Geometry,
    Program,
    as_written,
    name_of,
)
from gradwatch.harness.tracing.untraceable import Place, Untraceable
from gradwatch.harness.tracing.values import (
    Complex,
    as_exact,
    as_float,
    as_it_ran,
    both,
    constant,
    is_float_tensor,
    is_inexact,
    is_number,
    joined,
    leaf,
    narrow,
    parts,
    rounded,
    table,
    written_over,
)
from gradwatch.impls.graph import Node, recorded

Rule = Callable[..., Any]
#: Rules that get every tensor argument as a node of floats.
ON_FLOATS: dict[str, Rule] = matrices.ON_FLOATS | windows.ON_FLOATS
ON_FLOATS |= elementwise.ON_FLOATS | reductions.ON_FLOATS
#: Rules that get nodes, exact tensors and numbers as they come.
ON_VALUES: dict[str, Rule] = matrices.ON_VALUES | moves.ON_VALUES
ON_VALUES |= elementwise.ON_VALUES | reductions.ON_VALUES | segments.ON_VALUES
COVERED = {*ON_FLOATS, *ON_VALUES, *moves.MOVES, *complex.ON_COMPLEX}
_OURS = (operator.getitem, as_written)  # of the tape, no operators of ATen
_CASTS = frozenset(("_to_copy", "convert_element_type", "to", "type_as", "device_put"))
_KEEP_ZEROS = ("clone", "detach", "mul", "neg", "permute", "_sparse_sum", "transpose")
_TABLES = {name for name in FACTORIES if name.endswith("_window")} | {"linspace"}
_FACTORISATIONS = ("linalg_", "_linalg_", "cholesky", "geqrf", "lu_", "ormqr", "svd")


@dataclass(frozen=True)
class Decision:
    """An operator that makes whole numbers or a mask of floats, which are then used.

    A count's whole numbers are floats.
    """

    target: Any
    args: Any
    kwargs: dict[str, Any]

    @property
    def sources(self) -> list[Node]:
        """The floats."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [v for v in leaves if isinstance(v, Node) and is_number(v)]

    def of(self, floats: Mapping[Node, torch.Tensor]) -> list[torch.Tensor]:
        """What it would decide, if the floats were these."""

        def other(value: Any) -> Any:
            return floats[value] if value in floats else as_exact(value)

        args, kwargs = tree_map(other, (self.args, self.kwargs))
        made = tree_leaves(self.target(*args, **kwargs))
        return [part for part in made if not is_float_tensor(part)] or made


def interpret(
    program: Program, leaves: Sequence[Any], ran: Mapping[Call, Any]
) -> tuple[list[Any], list[Any], list[Decision]]:
    """What the program returns, what it read (nodes, exact tensors), and decisions.

    Where it `ran` before, whole numbers and masks are chosen by the numbers it had.

    Raises:
        Untraceable: an operator has no place in the engine.
    """
    known: dict[Any, Any] = {}
    decisions: list[Decision] = []
    record = recorded()
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
            known[node] = _constant(getattr(program, node.target))
        elif node.op == "output":
            read = [joined(known[reading.node]) for reading in program.readings]
            known |= untouched
            return [joined(known[out]) for out in node.args[0]], read, decisions
        else:
            args = map_arg(node.args, known.__getitem__)
            kwargs = dict(map_arg(node.kwargs, known.__getitem__))
            known[node] = apply(node.target, args, kwargs, _meta(node))
            if _is_used(node, known[node]):
                decision = Decision(node.target, args, kwargs)
                decisions += [decision] if decision.sources else []
            if node.target not in _OURS and not is_move(name_of(node.target)):
                known[node] = _narrowed(rounded, known[node], _meta(node), widest)
            known[node] = as_it_ran(known[node], ran.get(node))
            if record:
                for made in parts(known[node]):
                    record.places.setdefault(made, node.meta.get("place"))
    raise AssertionError("a program ends with its output")


def _narrowed(how: Any, value: Any, meta: Sequence[Geometry], widest: float) -> Any:
    """What an operator returned, each part rounded as the type that it has there."""
    if isinstance(value, (tuple, list)) and len(value) == len(meta):
        pairs = zip(value, meta, strict=True)
        return tuple(_narrowed(how, one, [its], widest) for one, its in pairs)
    if not meta or not is_inexact(meta[0]):
        return value
    return narrow(how, value, torch.finfo(meta[0].dtype), widest)


def _is_used(node: Call, made: Any) -> bool:
    """Whether whole numbers or masks are made that another operator reads."""
    for user in node.users:
        if user.target is operator.getitem and isinstance(made, (tuple, list)):
            place: Any = user.args[1]
            if _is_used(user, made[place]):
                return True
        elif user.op != "output" and isinstance(made, torch.Tensor):
            return True
    return False


def apply(target: Any, args: Any, kwargs: dict[str, Any], meta: Any) -> Any:
    """What one operator makes of nodes, exact tensors and numbers."""
    if target is operator.getitem:
        return args[0][args[1]]
    if target is as_written:
        kind: Any = Complex.of if _is_complex(meta) else as_float
        return both(written_over, *map(kind, args))
    name = name_of(target)
    floating = _floats(meta)
    values = tree_leaves((args, kwargs))
    if name in _CASTS:
        return _cast(args[0], meta)
    if name in FACTORIES:
        return _made(target, args, kwargs, meta)
    if not floating and not any(isinstance(v, (Node, Complex)) for v in values):
        return target(*args, **kwargs)
    if _is_complex(meta) or any(isinstance(v, Complex) for v in values):
        real = functools.partial(_by_table, target, name, whole=False)
        return complex.apply(target, name, args, kwargs, real)
    by_rule = name in ON_FLOATS or name in ON_VALUES
    truth = not floating and meta and meta[0].dtype == torch.bool and by_rule
    return _by_table(target, name, args, kwargs, whole=not (floating or truth))


def _by_table(
    target: Any, name: str, args: Any, kwargs: dict[str, Any], whole: bool
) -> Any:
    if whole:  # an order, a count: exact, and no gradient flows through it
        args, kwargs = tree_map(as_exact, (args, kwargs))
        return target(*args, **kwargs)
    if name in ON_FLOATS:
        tensors, tree = (Node, torch.Tensor), (args, kwargs)
        args, kwargs = tree_map_only(tensors, as_float, tree)
        return ON_FLOATS[name](*args, **kwargs)
    if name in ON_VALUES:
        return ON_VALUES[name](*args, **kwargs)
    return move(target, args, kwargs)


def _constant(tensor: torch.Tensor) -> Any:
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if tensor.is_complex():
        return Complex.of(tensor)
    return as_float(tensor) if is_float_tensor(tensor) else tensor


def _meta(node: Call) -> list[Geometry]:
    """What the tensors were like that the operator returned while it was captured."""
    return [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, Geometry)]


def _floats(meta: Sequence[Any]) -> bool:
    return any(map(is_inexact, meta))


def _is_complex(meta: Sequence[Any]) -> bool:
    return any(tensor.dtype.is_complex for tensor in meta)


def refuse_uncovered(program: Program) -> None:
    """Raise Untraceable for the first operator that has no place in the engine."""
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target not in _OURS:
            given = [like for source in node.all_input_nodes for like in _meta(source)]
            _refuse(node.target, _meta(node), given, node.meta["place"])


def _refuse(
    target: Any, meta: Sequence[Geometry], given: Sequence[Geometry], place: Place
) -> None:
    op = str(target).removesuffix(".default")
    if not isinstance(target, torch._ops.OpOverload):
        raise Untraceable(op, "is no operator of ATen", "no rule", place)
    name = name_of(target)
    op = f"{target.namespace}.{name}"
    if not meta:  # a check, which returns nothing
        return
    if torch.Tag.nondeterministic_seeded in target.tags:
        raise Untraceable(op, "hides what it draws at random", "random", place)
    if name.startswith(_FACTORISATIONS) and name not in {*ON_FLOATS, *ON_VALUES}:
        raise Untraceable(op, "factorises a matrix", "factorisation", place)
    sparse = any(t.layout != torch.strided for t in meta)
    if sparse and name not in {*ON_SPARSE, *_KEEP_ZEROS}:
        raise Untraceable(op, "returns a sparse tensor", "sparse", place)
    if name in FACTORIES or name in _CASTS:
        return
    if _is_complex([*meta, *given]):
        if not complex.has_rule(name):
            raise Untraceable(op, "has no rule for complex numbers", "complex", place)
    elif _floats(meta) and not (name in {*ON_FLOATS, *ON_VALUES} or is_move(name)):
        raise Untraceable(op, "has no rule in the engine", "no rule", place)


def _cast(value: Any, meta: Sequence[Geometry]) -> Any:
    """Precision is the judge's matter: only from and to whole numbers is a change."""
    dtype = meta[0].dtype
    if dtype.is_complex:
        return Complex.of(value)
    if dtype.is_floating_point:
        return value.re if isinstance(value, Complex) else as_float(value)
    if isinstance(value, Node) and dtype == torch.bool:
        return ON_VALUES["logical_or"](value, value)
    return as_exact(value).to(dtype)


def _made(target: Any, args: Any, kwargs: dict[str, Any], meta: Sequence[Any]) -> Any:
    """A tensor that is made of nothing; of floats, in the widest type PyTorch has."""
    args = tree_map(as_exact, args)
    if not _floats(meta):
        return target(*args, **kwargs)
    if _is_complex(meta):
        return Complex.of(target(*args, **{**kwargs, "dtype": torch.complex128}))
    made = constant(target(*args, **{**kwargs, "dtype": torch.float64}).numpy())
    # Of a window or a grid each element is off by roundings of the largest.
    is_table = name_of(target) in _TABLES
    return table(made, info=torch.finfo(meta[0].dtype)) if is_table else made
