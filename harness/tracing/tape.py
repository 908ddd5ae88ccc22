"""A tape: a record of the operators that run while it is on, none of them in place.

The function runs on real tensors. Operators that make or use floats are recorded; whole
numbers and masks that no input's floats decide are constants, as PyTorch made them.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._decomp import core_aten_decompositions, decomposition_table
from torch.nn import functional as F  # noqa: N812  # as usual
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from gradwatch.harness.tracing.untraceable import Place, Untraceable, callers_place
from gradwatch.harness.tracing.values import is_inexact

#: Decomposed too, beyond PyTorch's core table: the engine needs no rule of its own.
_COMPOSITES = """
    native_layer_norm native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _batch_norm_with_update_functional
    native_group_norm upsample_bicubic2d grid_sampler_2d var_mean std addbmm dist
    narrow_copy addr silu mish softplus lerp max_pool2d_with_indices_backward
"""
COMPOSITES = frozenset(_COMPOSITES.split())
#: Not decomposed: PyTorch's decomposition reads the value of an index; or its untaken
#: branch makes the slope nan of log_ndtr below -8, and of a softmax whose row is -inf,
#: and zero of x log y by x where x is 0. PyTorch's logsumexp takes its gradient from
#: the result, whose rounding is that of the largest x.
_WHOLE = """
    take detach special_log_ndtr special_entr _safe_softmax xlogy special_xlog1py
    logsumexp
"""
WHOLE = frozenset(_WHOLE.split())

#: Operators that make a tensor without reading another's numbers.
_FACTORIES = """
    arange empty empty_like empty_permuted empty_strided eye full full_like linspace
    logspace new_empty new_empty_strided new_full new_ones new_zeros ones ones_like
    scalar_tensor tril_indices triu_indices zeros zeros_like
    bartlett_window blackman_window hamming_window hann_window kaiser_window
"""
FACTORIES = frozenset(_FACTORIES.split())

#: Operators that draw random numbers, though PyTorch does not mark them so.
_UNMARKED = frozenset(("binomial", "random"))
#: An operator that, in training, multiplies an input by random numbers.
_MULTIPLIES = "rrelu_with_noise"

Function = Callable[..., Any]
Tensor = torch.Tensor
aten = torch.ops.aten
_AS_STRIDED = aten.as_strided.default  # reads the storage, whatever lies over it
#: Operators that make whole numbers: constants, where no input decides them.
_STEPS = (aten.ceil.default, aten.floor.default, aten.round.default, aten.trunc.default)
_EMPTY = aten.empty.memory_format  # PyTorch may fill it unseen: numbers of a list


def name_of(target: Any) -> str:
    """An operator's name without namespace, overload and the _ of in-place forms."""
    name = target._schema.name.split("::")[1]
    return str(name if name.startswith("_") else name.rstrip("_"))


@functools.cache
def decompositions() -> dict[Any, Any]:
    """Core ATen and `COMPOSITES`, from overload to the function that rewrites it."""
    core: dict[Any, Any] = dict(core_aten_decompositions())
    whole, composites = ({f"aten::{n}" for n in names} for names in (WHOLE, COMPOSITES))
    table = {k: v for k, v in core.items() if k._schema.name not in whole}
    for overload, rewrite in decomposition_table.items():
        schema = getattr(overload, "_schema", None)
        if schema is not None and schema.name in composites:
            table.setdefault(overload, rewrite)
    return table


@functools.cache
def _functional(target: Any) -> Any:
    """The overload that returns the values this one writes; None if it writes none."""
    schema = target._schema
    if not any(map(_is_written, schema.arguments)):
        return None
    kept = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    name = schema.name.split("::")[1]
    plain = name.removesuffix("_") if _returns_written(target) else f"{name}_functional"
    packet = getattr(aten, plain, None)
    for name in packet.overloads() if packet else ():
        other = getattr(packet, name)
        if [(a.name, str(a.type)) for a in other._schema.arguments] == kept:
            return other
    return None


def _returns_written(target: Any) -> bool:
    """Whether an overload returns just the tensors it writes to, as with `out`."""
    schema = target._schema
    written = sum(map(_is_written, schema.arguments))
    return len(schema.returns) == written and all(map(_is_written, schema.returns))


def _is_written(argument: Any) -> bool:
    return bool(argument.alias_info and argument.alias_info.is_write)


def as_written(before: Tensor, after: Tensor) -> Tensor:
    """The result of a write unseen by autograd: its gradient goes to `before`."""
    return before + (after - before).detach()


@dataclass(frozen=True)
class Reading:
    """A value read by the function that depends on an input."""

    node: fx.Node
    value: Any
    place: Place


class Program(torch.nn.Module):
    """Operators in the order in which they ran, none of them in place.

    Attributes:
        graph: The operators; its output is the function's result.
        readings: The values read, which may have decided the operators that ran.
        draws: The generators used (None: PyTorch's own), each with its state before.
            The numbers drawn are constants.
    """

    def __init__(self) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.readings: list[Reading] = []
        self.draws: dict[torch.Generator | None, Tensor] = {}

    def signature(self) -> list[Any]:
        """The operators that ran, with shapes and types: one for each branch taken."""
        return [(node.target, node.meta.get("val")) for node in self.graph.nodes]

    def ran(
        self, tensors: Sequence[Tensor], moved: Function | None = None
    ) -> dict[fx.Node, Any]:
        """Each operator's result for some tensors, in their precision, or `moved`."""
        kept: Any = fx.Interpreter(self, garbage_collect_values=False)
        run = kept.run_node

        def other(made: Tensor) -> Tensor:
            return moved(made) if moved and is_inexact(made) else made

        kept.run_node = lambda node: tree_map_only(Tensor, other, run(node))
        with torch.no_grad():
            kept.run(*tensors)
        return dict(kept.env)


@dataclass(frozen=True)
class Geometry:
    """Where a tensor's elements lie in its storage, and how their bits are read."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    layout: torch.layout
    strides: tuple[int, ...]
    start: int
    mirrored: tuple[bool, bool]

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        """The geometry of a tensor; one without strides is all of its storage."""
        plain = tensor.layout == torch.strided
        return cls(
            tensor.dtype,
            tuple(tensor.shape),
            tensor.layout,
            tensor.stride() if plain else (),
            int(tensor.storage_offset()) if plain else 0,
            (tensor.is_neg(), tensor.is_conj()),
        )


@dataclass(frozen=True)
class Memory:
    """The contents of a storage.

    Attributes:
        node: Its elements, in the order of `geometry`.
        geometry: Their places in it.
        depends: Whether they depend on an input of floats.
        followed: Whether a gradient flows back to such an input.
    """

    node: fx.Node
    geometry: Geometry
    depends: bool
    followed: bool

    def positions(self, view: Tensor) -> Tensor:
        """For each element of a view its position among the elements of `node`."""
        at = Geometry.of(view)
        if at.dtype != self.geometry.dtype or at.mirrored != self.geometry.mirrored:
            is_complex = at.dtype.is_complex or self.geometry.dtype.is_complex
            kind = "complex" if is_complex else "no rule"
            why = "reads the bits of a tensor in another type"
            raise Untraceable("aten.view", why, kind, callers_place())
        size = view.untyped_storage().nbytes() // view.element_size()
        mine, room = self.geometry, torch.arange(size)
        places = room.as_strided(mine.shape, mine.strides, mine.start).reshape(-1)
        held = torch.full_like(room, -1)
        held[places] = torch.arange(len(places))
        found = held.as_strided(at.shape, at.strides, at.start)
        if (found < 0).any():
            why = "reads storage outside of its input"
            raise Untraceable("aten.as_strided", why, "no rule", callers_place())
        return found.clone()


class Tape(TorchDispatchMode):
    """Records operators, and the contents of every storage.

    A tensor is known by its storage and by where its elements lie there: a view is
    another place in the same storage, and a write gives the storage another node. A
    tensor that autograd does not follow, as it requires no gradient or is a leaf made
    by the function, is read with a stop.
    """

    supports_higher_order_operators = True

    def __init__(self, leaves: Sequence[Tensor], shifts: Sequence[float] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints here
        self.shifts = shifts
        self.program = Program()
        self.memory: dict[Any, Memory] = {}
        # By node and geometry; constants by version.
        self.views: dict[Any, fx.Node] = {}
        self.alive: list[Any] = []  # or PyTorch would use their addresses again
        self.within = 0  # operators and Functions that run below autograd
        self.finest: float | None = None  # machine epsilon of an operator's operands
        self.resolved: list[Tensor] = []  # conjugates copied by PyTorch, below autograd
        for i, leaf in enumerate(leaves):
            node = self.program.graph.placeholder(f"leaf_{i}")
            node.meta["val"] = Geometry.of(leaf)
            if is_inexact(leaf):
                self._remember(leaf, node, True, leaf.requires_grad)
            else:
                self.views[_version(leaf)] = node
                self.alive.append(leaf)

    def __torch_dispatch__(
        self, target: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(target, torch._ops.OpOverload):
            with self:
                return target(*args, **kwargs)
        if draws(target):
            return self._draw(target, args, kwargs)
        given = _tensors((args, kwargs))
        made = None
        held = any(is_inexact(t) or _address(t) in self.memory for t in given)
        writes = any(map(_is_written, target._schema.arguments))
        if not held or not (writes or any(map(self.depends, given))):
            made = target(*args, **kwargs)
            whole = target in _STEPS or kwargs.get("rounding_mode")
            if whole or target is _EMPTY or not any(map(is_inexact, _tensors(made))):
                return made
        if torch.Tag.inplace_view in target.tags:  # another place, the same storage
            return target(*args, **kwargs)
        if torch.Tag.data_dependent_output in target.tags:
            return self._read_out(target, args)
        if _functional(target) is not None:
            return self._write_in_place(target, args, kwargs)
        rewrite = COMPOSED.get(name_of(target), decompositions().get(target))
        if given and rewrite is not None:
            _refuse_another(target, rewrite, args, kwargs)
            return self._inside(rewrite, args, kwargs)
        if target._can_decompose():
            return self._inside(target.decompose, args, kwargs)
        made = self._note(target, args, kwargs, made)
        # A conjugate is a view until an operator needs its numbers: that gets a copy.
        mirrored = target is aten.clone.default and any(Geometry.of(args[0]).mirrored)
        followed = mirrored and torch.is_grad_enabled() and self._follows(args[0])
        self.resolved = [*self.resolved, made] if followed else []
        return made

    # What a tensor is -----------------------------------------------------------------

    def _remember(
        self, tensor: Tensor, node: fx.Node, depends: bool, followed: bool
    ) -> None:
        at = Geometry.of(tensor)
        self.memory[_address(tensor)] = Memory(node, at, depends, followed)
        self.alive.append(tensor)

    def depends(self, tensor: Tensor) -> bool:
        """Whether the numbers of a tensor depend on those of an input."""
        held = self.memory.get(_address(tensor))
        return held is not None and held.depends

    def stops(self, tensor: Tensor) -> bool:
        """Whether autograd ends at a tensor whose storage has a gradient's path."""
        held = self.memory.get(_address(tensor))
        whole = tensor if tensor._base is None else tensor._base
        # Inputs are no leaves: a leaf was made by the function from a constant.
        watched = tensor.requires_grad and torch.is_grad_enabled() and not whole.is_leaf
        resolved = any(tensor is other for other in self.resolved)
        through = self.within or watched or resolved or not is_inexact(tensor)
        return held is not None and held.followed and not through

    def _is_unseen(self, into: Tensor, *given: Tensor) -> bool:
        """Whether a write to a tensor is invisible to autograd."""
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in given)
        return self.stops(into) and not recorded

    def _follows(self, tensor: Tensor) -> bool:
        held = self.memory.get(_address(tensor))
        return held is not None and held.followed and not self.stops(tensor)

    def _read(self, tensor: Tensor, *, stop: bool = True) -> fx.Node:
        """The node of a tensor, with a stop where autograd ends at it."""
        held = self.memory.get(_address(tensor))
        if held is None:
            key = _version(tensor)
            if key is None:
                return self._fixed(tensor)
            if key not in self.views:
                self.views[key] = self._fixed(tensor)
                self.alive.append(tensor)
            return self.views[key]
        node, at = held.node, Geometry.of(tensor)
        if at != held.geometry:
            if (node, at) not in self.views:
                places = self._fixed(held.positions(tensor))
                view = self._emit(aten.take.default, (node, places), {}, tensor)
                self.views[node, at] = view
            node = self.views[node, at]
        if not stop or not self.stops(tensor):
            return node
        return self._emit(aten.detach.default, (node,), {}, tensor)

    def _fixed(self, tensor: Tensor) -> fx.Node:
        """A constant node of a tensor's current numbers."""
        name = f"constant_{len(self.program.graph.nodes)}"
        setattr(self.program, name, tensor.detach().clone())
        node = self.program.graph.create_node("get_attr", name)
        node.meta["val"] = Geometry.of(tensor)
        return node

    # What an operator does ------------------------------------------------------------

    def _emit(self, target: Any, args: Any, kwargs: Any, made: Any) -> fx.Node:
        node = self.program.graph.call_function(target, args, kwargs)
        node.meta["val"] = tree_map_only(Tensor, Geometry.of, made)
        node.meta |= {"place": callers_place(), "finest": self.finest or 0.0}
        return node

    def _note(self, target: Any, args: Any, kwargs: Any, made: Any) -> Any:
        """Run an operator that writes to nothing, and record it."""
        given = _tensors((args, kwargs))
        read = functools.partial(self._read, stop=not target.is_view)
        read_args, read_kwargs = tree_map_only(Tensor, read, (args, kwargs))
        if made is None:
            made = target(*args, **kwargs)
        node = self._emit(target, read_args, read_kwargs, made)
        sources = () if name_of(target) in FACTORIES else given
        depends = any(map(self.depends, sources))
        followed = any(map(self._follows, sources))
        shared = {_address(t) for t in given}
        for i, part in enumerate(made if isinstance(made, (tuple, list)) else [made]):
            if not isinstance(part, Tensor):
                continue
            own = node
            if part is not made:
                own = self._emit(operator.getitem, (node, i), {}, part)
            if _address(part) not in shared:
                self._remember(part, own, depends, followed and is_inexact(part))
            elif target.is_view and _address(part) in self.memory:
                held = self.memory[_address(part)]
                if held.geometry != Geometry.of(part) and target is not _AS_STRIDED:
                    self.views.setdefault((held.node, Geometry.of(part)), own)
        return made

    def _draw(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that draws numbers: they are data, without a gradient."""
        name, named = name_of(target), _by_name(target, args, kwargs)
        multiplies = name == _MULTIPLIES
        if multiplies and target._schema.name.endswith("_"):
            made = getattr(aten, name).default
            return self._inside(lambda: args[0].copy_(made(**named)), (), {})
        if multiplies and not named["training"]:
            slope = (named["lower"] + named["upper"]) / 2
            return self._inside(aten.leaky_relu, (args[0], slope), {})
        generator = named.get("generator")
        state = (generator or torch.default_generator).get_state()
        self.program.draws.setdefault(generator, state)
        made = target(*args, **kwargs)
        for argument in filter(_is_written, target._schema.arguments):
            written = named[argument.name]
            self._write(written, written.detach().clone())
        return self._inside(torch.mul, args[:2], {}) if multiplies else made

    def _inside(self, function: Function, args: Any, kwargs: Any) -> Any:
        """Run an operator's decomposition, and copy back what it writes in place."""
        given = _tensors((args, kwargs))
        args, kwargs = tree_map_only(Tensor, self._cut, (args, kwargs))
        before, self.within = self.finest, self.within + 1
        if before is None:
            types = (t.dtype for t in given if is_inexact(t))
            self.finest = min((torch.finfo(t).eps for t in types), default=None)
        try:
            with self:
                made = function(*args, **kwargs)
            for into, copy in zip(given, _tensors((args, kwargs)), strict=True):
                if not torch.equal(into, copy):  # of a batch norm that is called again
                    self._write(into, copy)
            return made
        finally:
            self.finest, self.within = before, self.within - 1

    def _cut(self, tensor: Tensor) -> Tensor:
        """The tensor, or, where autograd ends at it, a copy without a gradient."""
        if not self.stops(tensor):
            return tensor
        copy = tensor.detach().clone()
        self._remember(copy, self._read(tensor), True, followed=False)
        return copy

    def _write_in_place(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Run the form of an operator that writes nothing, then copy its result."""
        if target is aten.copy_.default:
            return self._write(args[0], args[1], self._is_unseen(*args[:2]))
        arguments, named = target._schema.arguments, _by_name(target, args, kwargs)
        into = [
            named.pop(a.name) if a.is_out else named[a.name]
            for a in filter(_is_written, arguments)
        ]
        made = self._inside(_functional(target), (), named)
        values = made if isinstance(made, (tuple, list)) else [made]
        unseen = [self._is_unseen(tensor, *_tensors(named)) for tensor in into]
        self.within += 1
        try:
            for i, tensor in enumerate(into, len(values) - len(into)):
                if tensor.numel() != values[i].numel():
                    tensor.resize_(values[i].shape)
                    self.memory.pop(_address(tensor), None)
                self._write(tensor, values[i], unseen.pop(0))
        finally:
            self.within -= 1
        if not _returns_written(target):
            return tuple(values[: len(target._schema.returns)])
        return into[0] if len(into) == 1 else tuple(into)

    def _write(self, into: Tensor, value: Tensor, unseen: bool = False) -> Tensor:
        """Copy to a tensor: its storage has another node from now on.

        A write that autograd does not see, such as to `.data`, changes no gradient.
        """
        node = self._read(value)
        depends, followed = self.depends(value), self._follows(value)
        if value.dtype != into.dtype:
            to = {"dtype": into.dtype}
            node = self._emit(aten._to_copy.default, (node,), to, into)
        if value.shape != into.shape:
            node = self._emit(aten.expand.default, (node, list(into.shape)), {}, into)
        if unseen:
            before = self._read(into, stop=False)
            node, followed = self._emit(as_written, (before, node), {}, into), True
        whole, at = _whole_storage(into), Geometry.of(into)
        held = self.memory.get(_address(into))
        if held is None and Geometry.of(whole).strides != at.strides:
            self._remember(whole, self._fixed(whole), False, followed=False)
            held = self.memory[_address(into)]
        if held is None or at == held.geometry:
            self._remember(into, node, depends, followed)
        else:
            places = self._fixed(held.positions(into))
            node = self._emit(aten.put.default, (held.node, places, node), {}, whole)
            node.meta["val"] = held.node.meta["val"]
            self.memory[_address(into)] = Memory(
                *(node, held.geometry),
                *(depends or held.depends, followed or held.followed),
            )
        return aten.copy_.default(into, value)

    def _read_out(self, target: Any, args: Any) -> Any:
        """Read a value for the function, whose next steps may hold for it alone."""
        value, given, count = target(*args), _tensors(args), len(self.program.readings)
        if any(map(self.depends, given)):
            for tensor in given:
                self.decide(tensor, value)
        moved = isinstance(value, float) and count < len(self.shifts)
        return value + self.shifts[count] if moved else value

    def decide(self, tensor: Tensor, value: Any) -> None:
        """Note that a tensor's value was read."""
        node = self._read(tensor, stop=False)
        self.program.readings.append(Reading(node, value, callers_place()))

    def finished(self, returned: Sequence[Tensor]) -> Program:
        """The program, without operators that lead to no result."""
        graph = self.program.graph
        self.within += 1
        graph.output(tuple(map(self._read, returned)))
        read = {reading.node for reading in self.program.readings}
        for node in reversed(graph.nodes):
            made = node.op in ("call_function", "get_attr")
            if made and not node.users and node not in read:
                graph.erase_node(node)
        return self.program


def draws(target: Any) -> bool:
    """Whether an operator draws random numbers that have no gradient.

    Fused operators, such as dropout on a GPU, do not return their draws; a gamma's draw
    has a gradient.
    """
    name = name_of(target)
    marked = torch.Tag.nondeterministic_seeded in target.tags or name in _UNMARKED
    return marked and not name.startswith("_") and name != "native_dropout"


def _by_name(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of an operator by name, with its defaults."""
    arguments = target._schema.arguments
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    given = zip((a.name for a in arguments), args, strict=False)
    return defaults | dict(given) | kwargs


def _tensors(tree: Any) -> list[Tensor]:
    return [value for value in tree_leaves(tree) if isinstance(value, Tensor)]


def _address(tensor: Tensor) -> Any:
    """A key for a tensor's storage, or for the tensor if it has none."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):  # of a sparse one
        return f"tensor {id(tensor)}"


def _version(tensor: Tensor) -> Any:
    """A key for a tensor and its numbers; None where PyTorch counts no writes."""
    if tensor.is_inference():
        return None
    return _address(tensor), tensor._version, Geometry.of(tensor)


def _whole_storage(tensor: Tensor) -> Tensor:
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return whole.set_(tensor.detach().untyped_storage())


def replica(tensor: Tensor, wanted: bool) -> Tensor:
    """A copy in memory of its own, with the same strides (0 included) and gaps.

    A copy that needs a gradient is no leaf, so that it may be written to; elements that
    share memory get gradients of their own.
    """
    if wanted and torch._debug_has_internal_overlap(tensor) == 1:
        tensor = tensor.contiguous()
    if tensor.layout != torch.strided or tensor._is_zerotensor():
        return tensor.detach().clone().requires_grad_(wanted)
    whole = _whole_storage(tensor).clone()
    whole = whole.requires_grad_().clone() if wanted else whole
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


#: Share of the sizes of operands and results by which two ways in float64 may differ.
_ALIKE = 1e-6


def _refuse_another(target: Any, rewritten: Function, args: Any, kwargs: Any) -> None:
    """Raise Untraceable where PyTorch's decomposition is another function.

    Both are run in float64, unless they are alike in float32, which takes half of the
    memory; an operator that cannot be run, or whose result is not finite, is accepted.
    """
    if name_of(target) in FACTORIES:
        return

    writes = any(map(_is_written, target._schema.arguments))

    def run(function: Function, type_: torch.dtype) -> list[Tensor]:
        def held(tensor: Tensor) -> Tensor:
            wide = torch.promote_types(tensor.dtype, type_)
            dtype = wide if is_inexact(tensor) else tensor.dtype
            return tensor.detach().to(dtype, copy=writes)

        given = tree_map_only(Tensor, held, (args, kwargs))
        return _numbers(function(*given[0], **given[1]))

    def size(tensor: Tensor) -> float:
        return float(torch.linalg.vector_norm(tensor.detach(), math.inf))

    try:
        with torch.no_grad():
            for type_ in (torch.float32, torch.float64):
                pair = [run(function, type_) for function in (target, rewritten)]
                room = _ALIKE * sum(map(size, _numbers((args, kwargs, pair))))
                both = zip(*pair, strict=False)
                gaps = [size(a - b) for a, b in both if a.shape == b.shape]
                if all(gap <= room for gap in gaps):
                    return
    except Exception:  # noqa: BLE001  # every operator refuses types in its own way
        return
    for gap in (gap for gap in gaps if gap > room):
        why = "is decomposed by PyTorch into another function: in float64 the two "
        named = f"{target.namespace}.{name_of(target)}", why + f"differ by {gap:.3g}"
        raise Untraceable(*named, "no rule", callers_place())


def _numbers(tree: Any) -> list[Tensor]:
    return [t for t in _tensors(tree) if is_inexact(t) and t.numel()]


# Operators that PyTorch does not decompose, written in its own functions. For real
# numbers the result is compared with PyTorch's at each call.


def _grid_sampler_3d(
    x: Tensor, grid: Tensor, mode: int, padding: int, align: bool
) -> Tensor:
    """Planes sampled, then weighted by samples of the third axis's unit vectors."""
    batch, channels, depth = x.shape[:3]
    sample, how = torch.ops.aten.grid_sampler_2d, (mode, padding, align)
    places = grid.reshape(batch, 1, -1, 3)
    planes = sample(x.flatten(1, 2), places[..., :2], *how)
    axis = torch.eye(depth, dtype=x.dtype)[None, :, :, None].expand(batch, -1, -1, 1)
    along = torch.stack((torch.zeros_like(places[..., 2]), places[..., 2]), -1)
    weights = sample(axis, along, *how).reshape(batch, 1, depth, -1)
    y = (planes.reshape(batch, channels, depth, -1) * weights).sum(2)
    return y.reshape(batch, channels, *grid.shape[1:4])


def _trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    to_a: Sequence[int],
    to_b: Sequence[int],
    to_c: Sequence[int],
    dims: Sequence[int],
    unroll: int = 1,
) -> Tensor:
    pairs = (a, to_a), (b, to_b), (c, to_c)
    wide = [functools.reduce(Tensor.unsqueeze, sorted(new), x) for x, new in pairs]
    return (wide[0] * wide[1] * wide[2]).sum(list(dims))


def _interpolated(
    smooth: bool, x: Tensor, sizes: Sequence[int], align: bool, *scales: float | None
) -> Tensor:
    """Linear along each axis by kernels' products; `smooth` is antialiased."""
    y = x.float() if x.itemsize < 4 else x
    each = zip(x.shape[2:], sizes, scales or [None] * len(sizes), strict=True)
    for axis, (n, size, scale) in enumerate(each, 2):
        ends = (n - 1) / max(size - 1, 1)
        step = ends if align else 1 / scale if scale else n / size
        y, to = y.movedim(axis, -1), torch.arange(size).to(y)
        if smooth:
            away = torch.arange(n).to(y)[:, None] - step * (to + 0.5) + 0.5
            weights = (1 - away.abs() / max(step, 1)).clamp(min=0)
            y = y @ (weights / weights.sum(0))
        else:
            at = (to * step if align else (to + 0.5) * step - 0.5).clamp(min=0)
            low, share = at.long(), at - at.long()
            up = y[..., (low + 1).clamp(max=n - 1)]
            y = y[..., low] * (1 - share) + up * share
        y = y.movedim(-1, axis)
    return y.to(x)


def _linear_cross_entropy(
    x: Tensor,
    matrix: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignored: int,
    smoothing: float,
    *_: Any,
) -> tuple[Tensor, ...]:
    """The loss, without the gradients that the operator returns with it."""
    y = F.cross_entropy(
        F.linear(x, matrix, bias),
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    return y, *(x.new_empty(0) for _ in range(3))


def _embedding_bag(
    table: Tensor,
    indices: Tensor,
    offsets: Tensor,
    by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> tuple[Tensor, ...]:
    starts = offsets[:-1] if include_last else offsets
    bag = torch.searchsorted(starts, torch.arange(len(indices)), right=True) - 1
    rows = F.embedding(indices, table, scale_grad_by_freq=by_frequency)
    rows = rows if weights is None else rows * weights[:, None]
    kept = indices != padding
    into = bag[kept][:, None].expand(-1, table.shape[1])
    y = rows.new_zeros(len(starts), table.shape[1]).scatter_reduce(
        0, into, rows[kept], ("sum", "mean", "amax")[mode], include_self=False
    )
    return y, bag, bag, bag


def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
    **_: Any,
) -> Tensor:
    """The rows of each segment; a mean does not count what it starts from."""
    lengths = offsets.diff(dim=-1) if lengths is None else lengths
    rows, counts = data.flatten(0, axis), lengths.flatten()
    how = {"mean": "sum", "max": "amax", "min": "amin"}.get(reduce, reduce)
    empty = {"prod": 1.0, "max": -math.inf, "min": math.inf}.get(reduce, 0.0)
    start = empty if initial is None else initial
    wide = (-1, *[1] * (rows.ndim - 1))
    into = torch.repeat_interleave(counts).reshape(wide).expand_as(rows)
    y = rows.new_full((len(counts), *rows.shape[1:]), start)
    y = y.scatter_reduce(0, into, rows, how, include_self=initial is not None)
    y = y / counts.reshape(wide) if reduce == "mean" else y
    return y.reshape(*lengths.shape, *rows.shape[1:])


def _embedding_renorm(table: Tensor, index: Tensor, most: float, order: float) -> Any:
    """The rows that are looked up, each no longer than it may be."""
    size = torch.linalg.vector_norm(table, order, 1, keepdim=True)
    seen = torch.bincount(index.reshape(-1), minlength=len(table))[:, None] > 0
    return torch.where(seen & (size > most), table * (most / (size + 1e-7)), table)


def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    """By one choice: of a minimum and an absolute value each has its own at 0."""
    y = x.float() if x.itemsize < 4 else x
    low, end = y.where(y < 0, 0), y.where(y < 0, -y)
    return (low - end.exp().log1p()).to(x), x.new_empty(0)


COMPOSED: dict[str, Callable[..., Any]] = {
    "log_sigmoid_forward": _log_sigmoid,
    "embedding_renorm": _embedding_renorm,
    "grid_sampler_3d": _grid_sampler_3d,
    "_trilinear": _trilinear,
    **dict.fromkeys(
        ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
        functools.partial(_interpolated, False),
    ),
    "_upsample_bilinear2d_aa": functools.partial(_interpolated, True),
    "segment_reduce": _segment_reduce,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "_linear_cross_entropy_batch_chunked": _linear_cross_entropy,
    "_linear_cross_entropy_batch_chunked_no_reduction": (
        lambda x, matrix, target, bias, weight, ignored, *_: _linear_cross_entropy(
            x, matrix, target, bias, weight, "none", ignored, 0.0
        )[0]
    ),
}
