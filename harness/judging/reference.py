"""Computes the right answer, and how far rounding alone may move a result from it.

The formula runs in the graph engine in a type wider than the one under test, with a
running error beside every value. The reference's own roundoff is part of the radius:
where extended precision is no wider than float64, the radius doubles by itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from gradwatch.harness.judging.cases import run_formula
from gradwatch.harness.judging.excuses.imprecision import careless as losing
from gradwatch.harness.judging.excuses.imprecision import recovered
from gradwatch.harness.judging.excuses.overflow import (
    Peaks,
    Risk,
    peaks,
    risks,
)
from gradwatch.harness.judging.orders import OTHER_SIDE, SECOND, derivatives
from gradwatch.harness.judging.precisions import (
    PRECISIONS,
    Arithmetic,
    Array,
    Mask,
    Precision,
    arithmetics,
    name_of,
)
from gradwatch.harness.judging.rounding.analysis import (
    Error,
    Errors,
    limit_for,
    longest_reduction,
    operation,
    running_errors,
)
from gradwatch.harness.judging.spread import Whole, spread, whole
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem

Named = dict[str, graph.Node]
Nodes = Mapping[str, graph.Node]
#: Gives the nodes of tensors by name, not evaluated, for leaves of a type.
Build = Callable[[np.dtype[Any]], Nodes]

T = TypeVar("T")
Kind = TypeVar("Kind", bound="Asked")


def _kept(method: Callable[..., T]) -> Callable[..., T]:
    """A method whose results are kept, by its name and arguments."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def once(self: Reference, *given: Any, **how: Any) -> T:
        asked = signature.bind(self, *given, **how)
        asked.apply_defaults()  # what is left out is asked, too
        key = (method.__name__, *list(asked.arguments.values())[1:])
        if key not in self._kept:
            self._kept[key] = method(self, *given, **how)
        found: T = self._kept[key]
        return found

    return once


@dataclass(frozen=True)
class Asked:
    """What is judged: the graph of the right tensors, to be evaluated.

    Attributes:
        build: Gives the nodes by tensor name, not evaluated: gradients (from
            `graph.gradient`), outputs, state. Its leaves must hold arrays of the type
            that it is given, rounded to `dtype` first (`rounded` does both). For each
            of `graph.TIES` it has to build forward and gradient again.
        dtype: Precision of the tensors that are judged: a key of `PRECISIONS`.
        compute: The precision of intermediate values; by default what frameworks do
            (see `precisions.arithmetics`).
        outputs: Of second derivatives, the function's outputs, likewise. At a kink
            these are not defined: where a comparison is exactly met, and the outputs
            are the same from both sides, the derivatives may be those of the other
            side.
        unreached: Gradients that no path leads to; building fills it.
        problem: Whose graph it is, if its inputs may be flushed.
    """

    build: Build
    dtype: str
    compute: str | None = None
    outputs: Build | None = None
    unreached: list[str] = field(default_factory=list)
    problem: Problem | None = None

    @classmethod
    def of(cls: type[Kind], problem: Problem, compute: str | None = None) -> Kind:
        """Of an op's gradients, outputs and state."""
        arithmetics(problem.dtype, compute)  # refuses what there is not
        second = getattr(problem, "order", "vjp") in SECOND
        outputs = functools.partial(outputs_of, problem) if second else None
        build = functools.partial(nodes_of, problem)
        return cls(build, problem.dtype, compute, outputs, problem=problem)


@dataclass(frozen=True)
class Truth:
    """One tensor of the right answer, in the wide type.

    Attributes:
        radius: How far an honest implementation may land from each value, infinite
            where nothing is known.
        infinite: Where nothing but an infinity of the value's sign is right.
        zero: A radius up to this is made of underflow alone.
        nothing: A magnitude up to this is zero in the tensor that comes out.
        admissible: Of `argmax`: the axis, and which indices along it are right.
    """

    tensor: str
    value: Array
    radius: Error
    infinite: Mask
    zero: float = 0.0
    nothing: float = 0.0
    admissible: tuple[int, Mask] | None = None


class Reference:
    """All tensors of the right answer, once for each way of breaking ties.

    `bounds(convention)` holds gradients, outputs and new state by name, with the radii
    of the bound. There is one convention, "first", unless the gradient is a set.

    Raises:
        ValueError: no such `compute` for this dtype.

    Attributes:
        graphs: By convention the nodes of the tensors, evaluated.
        arithmetics: In which they may have been computed, widest first.
        longest: The number of terms of the longest reduction.
        limit: The ratio up to which an error is rounding.
        wide: Name of the type that the reference is computed in.
        choices: What the graph chooses among, by a convention where there is a tie.
    """

    def __init__(self, asked: Asked) -> None:
        self.dtype, self._problem = asked.dtype, asked.problem
        self.arithmetics = arithmetics(asked.dtype, asked.compute)
        wide = wider(PRECISIONS[asked.dtype])
        self.wide, self._eps = name_of(wide), float(np.finfo(wide).eps)
        self.build = functools.partial(asked.build, wide)
        self._kept: dict[Any, Any] = {}
        with graph.ties("first") as self.choices:
            self.graphs = {"first": _evaluated(self.build)}
        self.longest = longest_reduction(self.order("first"))
        self.limit = limit_for(self.longest)
        ways: dict[str, contextlib.AbstractContextManager[Any]] = {}
        if self.choices:
            ways = {name: graph.ties(name) for name in graph.TIES[1:]}
        if any(choice.indexed for choice in self.choices):
            ways[graph.SHARED] = graph.ties(graph.SHARED)
        compared = (n.inputs for n in self.order("first") if operation(n) == "compare")
        met = (a.floating and (a.value == b.value).any() for a, b in compared)
        outputs = asked.outputs and functools.partial(asked.outputs, wide)
        if outputs and any(met) and _continuous(outputs):
            ways[OTHER_SIDE] = graph.other_side()
        for name, way in ways.items():
            with way:
                nodes = _evaluated(self.build)
            first = self.graphs["first"].items()
            pairs = ((node.value, nodes[n].value) for n, node in first)
            if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
                self.graphs[name] = nodes

    @property
    def set_valued(self) -> bool:
        """Whether some gradient depends on how ties are broken."""
        return len(self.graphs) > 1

    @functools.cached_property
    def flushed(self) -> Reference | None:
        """That of zeros for subnormal inputs; None where there are none."""
        problem = self._problem
        if problem is None or self.dtype == "float16":  # which is computed in float32
            return None
        inputs = {n: self.flush(a) for n, a in problem.inputs.items()}
        along = [None if a is None else self.flush(a) for a in problem.cotangents]
        given = (*problem.inputs.values(), *problem.cotangents)
        if all(map(operator.is_, given, (*inputs.values(), *along))):
            return None
        return reference(replace(problem, inputs=inputs, cotangents=along))

    def flush(self, array: Array) -> Array:
        """The array with zeros of the same sign for its subnormal numbers, if any."""
        if array.dtype.kind != "f":
            return array
        small = (array != 0) & (np.abs(array) < PRECISIONS[self.dtype].smallest)
        zeros = np.copysign(np.zeros_like(array), array)
        return np.where(small, zeros, array) if small.any() else array

    @_kept
    def order(self, convention: str) -> Sequence[graph.Node]:
        """The nodes of the graph under a convention, each after its inputs."""
        return graph.topological_order(self.graphs[convention].values())

    def depends_on_ties(self, tensor: str) -> bool:
        """Whether this tensor is another one where ties are broken differently."""
        first, *others = (nodes[tensor].value for nodes in self.graphs.values())
        return any(not np.array_equal(first, v, equal_nan=True) for v in others)

    @_kept
    def bounds(
        self,
        convention: str = "first",
        arithmetic: Arithmetic | None = None,
        *,
        careless: str = "",
    ) -> Mapping[str, Truth]:
        """The tensors with radii of the bound.

        Those of a `careless` algorithm, which adds one by one in that precision, are
        of what came out finite, however near the end of the range.
        """
        arithmetic = arithmetic or self.arithmetics[-1]
        errors = self.errors(convention, arithmetic, careless)
        known = {} if careless else risks(self.order(convention), errors)
        stored, truths = arithmetic.stored, dict[str, Truth]()
        zero = underflow_of(self.order("first"), self.longest, stored)
        for name, node in self.graphs[convention].items():
            risk = known.get(node)
            if node.value.dtype.kind != "f":
                truths[name] = _whole(name, node, errors, risk)
                continue
            radius = arithmetic.roundoff * errors.errors[node]
            radius, infinite, unknown = self._stored(node, radius, arithmetic)
            if risk:
                infinite &= ~risk.undefined
                unknown |= risk.undefined | (risk.infinite & ~infinite)
            if unknown.any() and not careless:
                radius = np.where(unknown, np.inf, radius)
            value, there = np.asarray(node.value), np.asarray(infinite)
            held = name, value, np.asarray(radius), there, zero, stored.nothing
            truths[name] = Truth(*held)
        return truths

    @_kept
    def spreads(
        self,
        convention: str = "first",
        arithmetic: Arithmetic | None = None,
        *,
        careless: str = "",
        again: bool = False,
    ) -> Mapping[str, Error]:
        """Radii of the `spread`; of a `careless` algorithm, of what it loses alone."""
        arithmetic = arithmetic or self.arithmetics[-1]
        nodes, order = self.graphs[convention], self.order(convention)
        errors = self.errors(convention, arithmetic, careless)
        beside = self.errors(convention, arithmetic) if careless else None
        radii = spread(nodes, order, errors, beside=beside, again=again)
        for name, radius in radii.items():
            stored, *beyond = self._stored(nodes[name], radius, arithmetic)
            radii[name] = np.asarray(np.where(np.logical_or(*beyond), np.inf, stored))
        return radii

    @_kept
    def wholes(
        self, convention: str, arithmetic: Arithmetic, *, careless: str = ""
    ) -> Mapping[str, Whole]:
        """What roundings do to tensors as a whole; see `whole`."""
        errors = self.errors(convention, arithmetic, careless, full=bool(careless))
        order, nodes = self.order(convention), self.graphs[convention]
        found = self.peaks(convention, arithmetic)
        return whole(nodes, order, errors, found, again=bool(careless))

    @_kept
    def errors(
        self,
        convention: str,
        arithmetic: Arithmetic | None = None,
        careless: str = "",
        *,
        full: bool = False,
    ) -> Errors:
        """Running errors; of a `careless` algorithm with `full` losses or a share."""
        order, table = self.order(convention), None
        arithmetic = arithmetic or self.arithmetics[-1]
        if careless:
            found = self.peaks(convention, arithmetic)
            graphs = self.graphs[convention].items()
            # An output by another name is one excuse less.
            outputs = [node for name, node in graphs if name.startswith("y")]
            lost = recovered(order, outputs)
            table = losing(PRECISIONS[careless], lost, found, full=full)
        return running_errors(order, arithmetic, self.limit, table)

    @_kept
    def peaks(self, convention: str, arithmetic: Arithmetic | None = None) -> Peaks:
        """Partial products, by default in the narrowest arithmetic."""
        arithmetic = arithmetic or self.arithmetics[-1]
        return peaks(self.order(convention), arithmetic.step)

    def _stored(
        self, node: graph.Node, radius: Any, arithmetic: Arithmetic
    ) -> tuple[Any, Mask, Mask]:
        """A radius in the tensor that comes out; where it is infinite, and may be.

        The reference's own roundoff makes it larger, and one last rounding into
        narrower tensors: a single one, which is allowed once and not `limit` times.
        """
        stored = arithmetic.stored
        with np.errstate(all="ignore"):
            radius = radius * (1 + self._eps / 2 / arithmetic.roundoff)
            if stored is not arithmetic.step:
                size = np.abs(node.value).astype(np.float64)
                far = size + self.limit * radius
                last = (stored.roundoff * far + stored.floor) / self.limit
                radius = radius + np.where(np.isfinite(far), last, 0.0)
            room, size = self.limit * graph.as_array(radius), np.abs(node.value)
            certain: Mask = (size == np.inf) | (size - room >= stored.beyond)
            possible: Mask = (room < np.inf) & (size + room >= stored.beyond)
        return radius, certain, possible & ~certain


def _whole(name: str, node: graph.Node, errors: Errors, risk: Risk | None) -> Truth:
    """An integer tensor: exact, but that several indices may point at a maximum."""
    unknown, none = errors.errors[node] > 0, np.zeros(node.shape, bool)
    radius = np.where(unknown | risk.undefined if risk else unknown, np.inf, 0.0)
    if operation(node) != "argmax":
        return Truth(name, node.value, radius, none)
    (source,), axis = node.inputs, node.attributes["axis"]
    reach = errors.reach * errors.errors[source]
    with np.errstate(all="ignore"):
        least = np.max(source.value - reach, axis=axis, keepdims=True)
        right = (source.value + reach >= least) | np.isnan(source.value)
    which = axis % source.ndim, right
    return Truth(name, node.value, radius, none, admissible=which)


def underflow_of(order: Sequence[graph.Node], longest: int, stored: Precision) -> float:
    """A radius that is made of underflow alone, in a graph with so long a reduction.

    Two products a term, and two at the end, times numbers up to the largest leaf.
    """
    leaves = (node.value for node in order if node.primitive is None)
    sizes = (
        np.max(np.abs(v), initial=1.0, where=np.isfinite(v))
        for v in leaves
        if v.dtype.kind == "f"
    )
    return 2 * (longest + 1) * float(max(sizes, default=1.0)) * stored.floor


def wider(precision: Precision) -> np.dtype[Any]:
    """The type in which gradients of this precision are judged."""
    return np.dtype(np.longdouble if precision.name == "float64" else np.float64)


def require_subnormals() -> None:
    """Raise FloatingPointError where this thread flushes subnormal numbers to zero.

    The reference would flush what the implementation under test does, and a wrong zero
    would agree. The flag belongs to the thread: PyTorch's call sets it for ours.
    """
    smallest = np.array([np.finfo(np.float64).tiny])
    if not (smallest / 2)[0] > 0 or not (np.array([5e-324]) * 2.0**60)[0] > 0:
        raise FloatingPointError(
            "subnormal numbers are flushed to zero in this thread, so that nothing can "
            "be judged in it: call torch.set_flush_denormal(False) before, or judge in "
            "another process"
        )


def reference(problem: Problem, compute: str | None = None) -> Reference:
    """Gradients, outputs and state of a problem, with their rounding radii.

    Raises:
        Unsupported: the op has no formula.
        FloatingPointError: subnormal numbers are flushed to zero in this thread.
        ValueError: no such `compute` for the problem's dtype.
    """
    require_subnormals()
    return Reference(Asked.of(problem, compute))


def nodes_of(problem: Problem, wide: np.dtype[Any]) -> dict[str, graph.Node]:
    """The tensors of a problem for leaves of a type: gradients, outputs and state.

    Of a second order its derivatives alone.
    """
    order = getattr(problem, "order", "vjp")  # an older commit's problem has none
    op = problem.op
    leaves, results = results_of(problem, wide)
    cotangents = {
        name: dy
        for name, dy in zip(op.outputs, problem.cotangents, strict=True)
        if dy is not None and name not in op.integers
    }
    inputs = {name: leaves[name] for name in problem.wanted}
    given = cotangents, getattr(problem, "tangents", {})
    along = (_widened(arrays, problem.dtype, wide) for arrays in given)
    computed, _ = derivatives(order, results, inputs, *along)
    return {**computed, **results} if order == "vjp" else computed


def results_of(problem: Problem, wide: np.dtype[Any]) -> tuple[Named, Named]:
    """The leaves of a problem by name, and its outputs and new state."""
    arrays = _widened(problem.inputs, problem.dtype, wide)
    leaves = {n: graph.variable(a) for n, a in arrays.items()}
    returned = run_formula(problem, leaves)
    results = dict(zip(problem.op.outputs + problem.op.state, returned, strict=True))
    return leaves, results


def outputs_of(problem: Problem, wide: np.dtype[Any]) -> Named:
    """The outputs and the new state of a problem."""
    return results_of(problem, wide)[1]


def _widened(
    arrays: Mapping[str, Array], dtype: str, wide: np.dtype[Any]
) -> dict[str, Array]:
    return {n: rounded(a, PRECISIONS[dtype], wide) for n, a in arrays.items()}


def rounded(array: Array, precision: Precision, wide: np.dtype[Any]) -> Array:
    """In the wide type, what the precision holds of an array; integers stay."""
    if array.dtype.kind in "biu":
        return array
    held = array.astype(wide, copy=False)
    return held if name_of(array.dtype) == precision.name else precision.round(held)


def _evaluated(build: Callable[[], Nodes]) -> Nodes:
    nodes = build()
    graph.forward(nodes.values())
    return nodes


def _continuous(outputs: Callable[[], Nodes]) -> bool:
    """Whether the outputs are the same from the other side, but for some roundings.

    A branch that cannot be taken there, as its index is outside of the array, continues
    nothing.
    """
    here = _evaluated(outputs)
    limit = limit_for(longest_reduction(graph.topological_order(here.values())))
    try:
        with graph.other_side():
            there = _evaluated(outputs)
    except IndexError:
        return False
    for name, node in here.items():
        one, other = node.value, there[name].value
        size = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        room = limit * np.finfo(one.dtype).eps * size if one.dtype.kind == "f" else 0
        if not np.allclose(one, other, rtol=0, atol=float(room), equal_nan=True):
            return False
    return True
