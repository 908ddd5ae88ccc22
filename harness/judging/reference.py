"""Computes the right answer: the formula in the graph engine, in a wider type."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from gradwatch.harness.judging.orders import OTHER_SIDE, SECOND, nodes_of, results_of
from gradwatch.harness.judging.precisions import (
    PRECISIONS,
    Arithmetic,
    Array,
    Precision,
    arithmetics,
    compute_on,
    name_of,
)
from gradwatch.harness.judging.radii import Nodes, Radii
from gradwatch.harness.judging.rounding.analysis import limits, lost, operation
from gradwatch.harness.judging.rounding.thresholds import AS_A_WHOLE
from gradwatch.harness.judging.spread import PAIRS
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem
from gradwatch.impls.graph.rewriting import absorb

#: Readings of a sum whose smaller operand is far below its last place.
ABSORBED = ("absorbed", "kept")
#: Gives the nodes of tensors by name, not evaluated, for leaves of a type.
Build = Callable[[np.dtype[Any]], Nodes]

Kind = TypeVar("Kind", bound="Asked")


@dataclass(frozen=True)
class Asked:
    """The graph of the right tensors, to be evaluated.

    Attributes:
        build: Gives the nodes by tensor name, not evaluated: gradients (from
            `graph.gradient`), outputs, state. Its leaves must hold arrays of the type
            that it is given, rounded to `dtype` first. For each of `graph.TIES` it has
            to build forward and gradient again.
        dtype: Precision of the tensors that are judged: a key of `PRECISIONS`.
        compute: The precision of intermediate values; by default that of frameworks
            (see `precisions.arithmetics`).
        outputs: Likewise for the function's outputs, in a second order. At a kink its
            derivatives are not defined: where a comparison is exactly met, and the
            outputs are the same from both sides, they may be those of the other side.
        unreached: Gradients that no path leads to; building fills it.
        problem: The problem of the graph, if its inputs may be flushed.
    """

    build: Build
    dtype: str
    compute: str | None = None
    outputs: Build | None = None
    unreached: list[str] = field(default_factory=list)
    problem: Problem | None = None

    @classmethod
    def of(
        cls: type[Kind],
        problem: Problem,
        compute: str | None = None,
        device: str = "cpu",
    ) -> Kind:
        """Build from an op's gradients, outputs and state, computed on a device."""
        compute = compute or compute_on(device, problem.dtype)
        arithmetics(problem.dtype, compute)  # raises ValueError if there is none
        second = problem.order in SECOND
        outputs = (lambda wide: results_of(problem, wide)[1]) if second else None
        build = functools.partial(nodes_of, problem)
        return cls(build, problem.dtype, compute, outputs, problem=problem)


class Reference:
    """All tensors of the right answer, once for each way of breaking ties.

    There is one convention, "first", unless the gradient is a set.

    Raises:
        ValueError: no such `compute` for this dtype.
        FloatingPointError: subnormal numbers are flushed to zero in this thread.

    Attributes:
        graphs: The evaluated nodes of each convention by name, new state included.
        arithmetics: The arithmetics that may have computed them, widest first.
        longest: The number of terms of the longest reduction.
        limit: The ratio up to which an error is rounding.
        wide: Name of the type that the reference is computed in.
        choices: The choices in the graph that a convention decides if there is a tie.
        tied: The tensors that change where ties are broken differently.
        pairs: Of evaluations of a tensor as a whole: more where fewer do not decide.
    """

    pairs: tuple[int, ...] = (PAIRS, *AS_A_WHOLE)

    def __init__(self, asked: Asked) -> None:
        require_subnormals()
        # A copy: a question keeps its answer, which must not keep it in turn.
        self.dtype, self._asked = asked.dtype, replace(asked)
        self.arithmetics = arithmetics(asked.dtype, asked.compute)
        wide = wider(PRECISIONS[asked.dtype])
        self.wide, self.build = name_of(wide), functools.partial(asked.build, wide)
        self.tied = set[str]()
        self._radii: dict[tuple[str, Arithmetic], Radii] = {}
        with graph.ties("first") as self.choices:
            self.graphs = {"first": self.build()}
        order = graph.topological_order(self.graphs["first"].values())
        self.longest, self.limit = limits(order)
        ways = [*graph.TIES[1:]] if self.choices else []
        ways += [graph.SHARED] if any(c.indexed for c in self.choices) else []
        ways += [graph.BOUNDED] if len({c.bounded for c in self.choices}) > 1 else []
        compared = (n.inputs for n in order if operation(n) == "compare")
        met = (a.floating and (a.value == b.value).any() for a, b in compared)
        outputs = asked.outputs and functools.partial(asked.outputs, wide)
        if outputs and any(met) and _continuous(outputs):
            ways.append(OTHER_SIDE)
        for name in ways:
            nodes, first = self.built(name), self.graphs["first"].items()
            alike = functools.partial(np.array_equal, equal_nan=True)
            other = {n for n, a in first if not alike(a.value, nodes[n].value)}
            self.tied |= other
            if other:
                self.graphs[name] = nodes

    @functools.cached_property
    def flushed(self) -> Reference | None:
        """The reference for zeros in place of subnormal inputs; None without such."""
        problem = self._asked.problem
        if problem is None or self.dtype == "float16":  # which is computed in float32
            return None
        inputs = {n: self.flush(a) for n, a in problem.inputs.items()}
        along = [None if a is None else self.flush(a) for a in problem.cotangents]
        given = (*problem.inputs.values(), *problem.cotangents)
        if all(map(operator.is_, given, (*inputs.values(), *along))):
            return None
        flushed = replace(problem, inputs=inputs, cotangents=along)
        return Reference(Asked.of(flushed, self._asked.compute))

    @functools.cached_property
    def reordered(self) -> Reference | None:
        """The reference that adds up a gradient's parts otherwise, if some cancel."""
        order = graph.topological_order(self.graphs["first"].values())
        sums = (n for n in order if operation(n) == "add")
        if not any(((n.value == 0) & (n.inputs[0].value != 0)).any() for n in sums):
            return None

        def build(wide: np.dtype[Any], asked: Asked = self._asked) -> Nodes:
            with graph.cancelling_last():
                return asked.build(wide)

        return Reference(replace(self._asked, build=build))

    def flush(self, array: Array) -> Array:
        """The array with zeros of the same sign for its subnormal numbers, if any."""
        if array.dtype.kind != "f":
            return array
        small = (array != 0) & (np.abs(array) < PRECISIONS[self.dtype].smallest)
        zeros = np.copysign(np.zeros_like(array), array)
        return np.where(small, zeros, array) if small.any() else array

    def radii(
        self, convention: str = "first", arithmetic: Arithmetic | None = None
    ) -> Radii:
        """The rounding radii, by default in the narrowest arithmetic."""
        way = convention, arithmetic or self.arithmetics[-1]
        if way not in self._radii:
            nodes = self.rivals(convention)[convention]
            self._radii[way] = Radii(nodes, way[1], self.limit, self.longest)
        return self._radii[way]

    def rivals(self, convention: str) -> Mapping[str, Nodes]:
        """The tensors of this reading, and of others that might have explained them."""
        return self.absorbed if convention in ABSORBED else self.graphs

    @functools.cached_property
    def absorbed(self) -> Mapping[str, Nodes]:
        """The tensors where sums lose small operands, or keep all; {} if not felt."""
        names = ABSORBED[:1] if self.dtype == "float64" else ABSORBED  # none is finer
        return {n: self.built(n) for n in names if self.radii().errors.absorbing}

    def built(self, convention: str) -> Nodes:
        """The nodes of a convention, or of a reading of absorbed operands, again."""
        with choosing(convention):
            nodes = self.build()
        if convention in ABSORBED:
            how = functools.partial(lost, self.arithmetics[-1])
            absorb(nodes.values(), how, kept=convention == "kept")
        return nodes


def choosing(convention: str) -> contextlib.AbstractContextManager[Any]:
    """Build nodes inside by a convention."""
    if convention == OTHER_SIDE:
        return graph.other_side()
    return graph.ties("first" if convention in ABSORBED else convention)


def wider(precision: Precision) -> np.dtype[Any]:
    """The type in which gradients of this precision are judged."""
    return np.dtype(np.longdouble if precision.name == "float64" else np.float64)


def require_subnormals() -> None:
    """Raise FloatingPointError where this thread flushes subnormal numbers to zero.

    The reference would flush the same numbers as the implementation under test, and a
    wrong zero would agree. PyTorch's call sets the flag for the calling thread.
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
    """
    return Reference(Asked.of(problem, compute))


def _continuous(outputs: Callable[[], Nodes]) -> bool:
    """Whether the outputs are the same from the other side, but for some roundings.

    They are not if the branch of that side fails, as its index is outside of the array.
    """
    here = outputs()
    _, limit = limits(graph.topological_order(here.values()))
    try:
        with graph.other_side():
            there = outputs()
    except IndexError:
        return False
    for name, node in here.items():
        one, other = node.value, there[name].value
        size = np.max(np.abs(one), initial=0.0, where=np.isfinite(one))
        room = limit * np.finfo(one.dtype).eps * size if one.dtype.kind == "f" else 0
        if not np.allclose(one, other, rtol=0, atol=float(room), equal_nan=True):
            return False
    return True
