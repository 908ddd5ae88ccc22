"""Rounding radii of the tensors of a graph, computed in one arithmetic.

Each radius is that of the result as it is returned. The reference's own roundoff is
part of it, so that it doubles where extended precision is no wider than float64.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradwatch.harness.judging.excuses.imprecision import careless, recovered
from gradwatch.harness.judging.excuses.overflow import Peaks, Risk, peaks, risks
from gradwatch.harness.judging.precisions import (
    PRECISIONS,
    Arithmetic,
    Array,
    Mask,
    Precision,
)
from gradwatch.harness.judging.rounding import analysis
from gradwatch.harness.judging.spread import NORMS, Whole, spread, whole
from gradwatch.impls.graph import Node, as_array, topological_order
from gradwatch.impls.graph.engine import largest_magnitude

Nodes = Mapping[str, Node]


@dataclass(frozen=True)
class Truth:
    """One tensor of the right answer, in the wide type.

    Attributes:
        radius: How far an honest implementation may land from each value, infinite
            where nothing is known.
        infinite: Elements for which only an infinity of the value's sign is right.
        zero: The largest radius that underflow alone may make.
        nothing: The largest magnitude that is zero in the returned tensor.
        admissible: For `argmax`: the axis, and a mask of the right indices along it.
    """

    tensor: str
    value: Array
    radius: analysis.Error
    infinite: Mask
    zero: float = 0.0
    nothing: float = 0.0
    admissible: tuple[int, Mask] | None = None


@dataclass(frozen=True, eq=False)
class Radii:
    """The rounding radii of each tensor; every kind is computed at its first use.

    Attributes:
        nodes: The right tensors by name, evaluated.
        arithmetic: The one in which the tensors under test may have been computed.
        limit: The ratio up to which an error is rounding.
        longest: The number of terms of the longest reduction.
        sums: The precision of a careless algorithm's sequential sums; empty if none.
        honest: For a careless algorithm, the radii of one that is not.
        rules: Rules of running errors, in place of the usual ones.
    """

    nodes: Nodes
    arithmetic: Arithmetic
    limit: float
    longest: int
    sums: str = ""
    honest: Radii | None = None
    rules: analysis.Table | None = None
    _careless: dict[tuple[str, ...], Radii] = field(default_factory=dict, init=False)
    _spreads: dict[bool, dict[str, Any]] = field(default_factory=dict, init=False)
    _wholes: dict[Any, dict[str, Whole]] = field(default_factory=dict, init=False)

    def careless(self, sums: str, names: tuple[str, ...]) -> Radii:
        """The radii of some tensors if one algorithm adds one by one in a precision."""
        if (key := (sums, *names)) not in self._careless:
            nodes = {n: node for n, node in self.nodes.items() if n in names}
            self._careless[key] = replace(self, nodes=nodes, sums=sums, honest=self)
        return self._careless[key]

    @functools.cached_property
    def order(self) -> Sequence[Node]:
        """The nodes of the graph, each after its inputs."""
        return topological_order(self.nodes.values())

    @functools.cached_property
    def errors(self) -> analysis.Errors:
        """The running errors; for a careless algorithm with its own losses."""
        return self._errors(full=False)

    @functools.cached_property
    def peaks(self) -> Peaks:
        """The largest and smallest partial products of each node."""
        return peaks(self.order, self.arithmetic.step)

    @functools.cached_property
    def bounds(self) -> Mapping[str, Truth]:
        """The tensors with radii of the bound.

        For a careless algorithm a radius is finite even where the value may overflow.
        """
        risky = {} if self.honest else risks(self.order, self.errors)
        stored, truths = self.arithmetic.stored, dict[str, Truth]()
        zero = underflow_of(self.order, self.longest, stored)
        for name, node in self.nodes.items():
            risk = risky.get(node)
            if node.value.dtype.kind != "f":
                truths[name] = _whole(name, node, self.errors, risk)
                continue
            radius = self.arithmetic.step.roundoff * self.errors.errors[node]
            radius, infinite, unknown = self._stored(node, radius)
            if risk:
                infinite &= ~risk.undefined
                unknown |= risk.undefined | (risk.infinite & ~infinite)
            if unknown.any() and not self.honest:
                radius = np.where(unknown, np.inf, radius)
            value, radius, infinite = map(np.asarray, (node.value, radius, infinite))
            truths[name] = Truth(name, value, radius, infinite, zero, stored.nothing)
        return truths

    def spreads(self, *, again: bool = False) -> Mapping[str, analysis.Error]:
        """Radii of the spread; for a careless algorithm, of its own losses alone.

        With `again` a product of matrices is rounded for each of its uses.
        """
        if again not in self._spreads:
            beside = self.honest.errors if self.honest else None
            given = self.nodes, self.order, self.errors
            self._spreads[again] = made = spread(*given, beside=beside, again=again)
            for name, radius in made.items():
                stored, *beyond = self._stored(self.nodes[name], radius)
                made[name] = as_array(np.where(np.logical_or(*beyond), np.inf, stored))
        return self._spreads[again]

    def wholes(self, pairs: int = NORMS, *, again: bool = False) -> Mapping[str, Whole]:
        """The norms and projections of roundings, for tensors as a whole.

        With `again` a product of matrices is rounded for each of its uses.
        """
        if (key := (pairs, again)) not in self._wholes:
            honest, again = self.honest or self, again or self.honest is not None
            errors = self._errors(full=True) if self.honest else self.errors
            given = self.nodes, self.order, errors, honest.peaks
            self._wholes[key] = whole(*given, again=again, pairs=pairs)
        return self._wholes[key]

    def _errors(self, *, full: bool) -> analysis.Errors:
        table = self.rules
        if honest := self.honest:
            # Without this name an output only has one excuse less.
            outputs = [n for name, n in honest.nodes.items() if name.startswith("y")]
            lost, found = recovered(honest.order, outputs), honest.peaks
            table = careless(PRECISIONS[self.sums], lost, found, full=full)
        return analysis.running_errors(self.order, self.arithmetic, self.limit, table)

    def _stored(self, node: Node, radius: Any) -> tuple[Any, Mask, Mask]:
        """A radius in the returned tensor; masks of sure and of possible infinities.

        The radius grows by the reference's own roundoff, and by one last rounding into
        narrower tensors: a single one, which is allowed once and not `limit` times.
        """
        arithmetic = self.arithmetic
        stored, wide = arithmetic.stored, np.finfo(np.result_type(node.dtype, 0.0)).eps
        with np.errstate(all="ignore"):
            radius = radius * (1 + float(wide) / 2 / arithmetic.step.roundoff)
            if stored is not arithmetic.step:
                size = np.abs(node.value).astype(np.float64)
                far = size + self.limit * radius
                last = (stored.roundoff * far + stored.floor) / self.limit
                radius = radius + np.where(np.isfinite(far), last, 0.0)
            room, size = self.limit * as_array(radius), np.abs(node.value)
            certain: Mask = (size == np.inf) | (size - room >= stored.beyond)
            possible: Mask = (room < np.inf) & (size + room >= stored.beyond)
        return radius, certain, possible & ~certain


def _whole(name: str, node: Node, errors: analysis.Errors, risk: Risk | None) -> Truth:
    """An integer tensor: it is exact, but several indices may point at a maximum."""
    unknown, none = errors.errors[node] > 0, np.zeros(node.shape, bool)
    radius = np.where(unknown | risk.undefined if risk else unknown, np.inf, 0.0)
    if analysis.operation(node) != "argmax":
        return Truth(name, node.value, radius, none)
    (source,), axis = node.inputs, node.attributes["axis"]
    reach = errors.reach * errors.errors[source]
    with np.errstate(all="ignore"):
        least = np.max(source.value - reach, axis=axis, keepdims=True)
        right = (source.value + reach >= least) | np.isnan(source.value)
    return Truth(name, node.value, radius, none, admissible=(axis % source.ndim, right))


def underflow_of(order: Sequence[Node], longest: int, stored: Precision) -> float:
    """The largest radius from underflow alone, in a graph with reductions so long.

    Two products a term, and two at the end, times numbers up to the largest leaf.
    """
    leaves = (n.value for n in order if n.primitive is None and n.dtype.kind == "f")
    sizes = (largest_magnitude(v, 1.0, np.isfinite(v)) for v in leaves)
    return 2 * (longest + 1) * float(max(sizes, default=1.0)) * stored.floor
