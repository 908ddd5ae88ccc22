"""Overflow: intermediate values that may be infinite or nan in the narrow type.

The reference has a wider range. So the part of the graph that may overflow is evaluated
once more, with an infinity for each value that may be infinite, and nan where its sign
is not known. An element whose change rounding does not explain *may be infinite*, and
where it is no infinity *may be nan*. Whether a sum may overflow is decided by its
terms' magnitudes. An infinity that comes from the inputs (the -inf of a mask) is exact.

**Another order of operations.** 2 x dy may be computed as (2 x) dy or as x (2 dy), and
the second may overflow though the formula does not. So it is with a quotient, a square,
and a factor that is taken out of a sum, as rstd^3 in PyTorch's layer_norm. The largest
partial product of some factors is the product of those above 1, the *peak*: an infinity
is excused where it lies beyond the range. The smallest is that of the factors below 1:
where it underflows, digits are lost that the formula keeps (imprecision.py). A peak
follows from the peaks of the factors, back to values that are no product, where it is
the value's own magnitude. But matrix products of inputs alone, such as a^T W b, may be
taken in any order. Peaks are exponents: log2 of the magnitude, at least 0.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.precisions import Array, Mask, Precision
from gradwatch.harness.judging.rounding.analysis import (
    RULES,
    Error,
    Errors,
    computed,
    largest,
    moves,
    operation,
    terms,
)
from gradwatch.impls.graph import Node, as_array

Exponents = NDArray[np.float64]
Ends = tuple[Exponents, Exponents]


@dataclass(frozen=True)
class Risk:
    """Where a node's value may be infinite, and where it may be nan."""

    infinite: Mask
    undefined: Mask


def risks(
    order: Sequence[Node], errors: Errors, peaks: Peaks | None = None
) -> dict[Node, Risk]:
    """The risks of nodes that overflow may reach; other nodes are left out.

    With `peaks` in any order of operations, else in the formula's.
    """
    found: dict[Node, Array] = {}
    bounds: dict[Node, Array] = {}  # least magnitudes where the wide type overflows
    seen = ChainMap(bounds, found)
    sizes: Mapping[Node, Array] = {}
    beyond = errors.arithmetic.step.beyond
    with np.errstate(all="ignore"):
        for node in order:
            if node.primitive is None or _is_tame(node, errors, seen, peaks):
                continue
            infinite, known = np.isinf(node.value), seen
            if infinite.any():
                known = ChainMap(*seen.maps, {s: _not_zero(s) for s in node.inputs})
            value = _overflowing(at := _View(node, errors, known, peaks))
            if peaks is not None and peaks.overflow(node).any():
                sizes = sizes or magnitudes(order)
                value = np.where(_clashes(at, sizes[node]), np.nan, value)
            made = all(s in bounds or np.isfinite(s.value).all() for s in node.inputs)
            if made and infinite.any():
                top = np.copysign(np.finfo(node.dtype).max, node.value)
                sure = infinite & (np.sign(top) * value >= beyond)
                inf = {
                    s: np.where(np.isinf(s.value), s.value, known[s])
                    for s in node.inputs
                }
                narrow = _overflowing(_View(node, errors, inf, peaks))
                sure &= ~np.isnan(narrow)  # such as inf - inf, or 0 * inf
                value = np.where(infinite, np.where(sure, node.value, np.nan), value)
                bounds[node] = np.where(sure, top, value)
            same = _is_same(at, value)
            if not same.all():
                found[node] = np.where(same, node.value, value)
        risky = {}
        for node, value in found.items():
            other = (value != node.value) & ~np.isnan(node.value)
            undefined = other & np.isnan(value)
            if peaks is None:  # another order explains no finite number
                undefined |= other & np.isfinite(value)
            risky[node] = Risk(undefined | (other & np.isinf(value)), undefined)
        return risky


def _not_zero(node: Node) -> Array:
    """A value with the least number in place of exponentials that underflow to 0."""
    if operation(node) == "divide":
        return as_array(_not_zero(node.inputs[0]) / node.inputs[1].value)
    if operation(node) not in ("exp", "exp2", "sigmoid"):
        return node.value
    gone = (node.value == 0) & np.isfinite(node.inputs[0].value)
    return np.where(gone, np.finfo(float).tiny, node.value)


def _is_same(at: _View, found: Array) -> Mask:
    """A mask of elements whose difference from the value rounding explains."""
    value, error = at.node.value, at.errors.errors[at.node]
    same = as_array((found == value) | np.isnan(value))
    if value.dtype.kind == "f" and not same.all():
        same |= np.isfinite(found) & (np.abs(found - value) <= at.errors.reach * error)
    return same


def _is_tame(
    node: Node, errors: Errors, found: Mapping[Node, Array], peaks: Peaks | None
) -> bool:
    """Whether a node and its inputs are far from overflow: a quick test."""
    if any(source in found for source in node.inputs):
        return False
    if peaks is not None and peaks.overflow(node).any():
        return False
    size, top = errors.sizes[node], errors.arithmetic.step.largest
    if not size.size or moves(node):
        return True
    most, peak = largest(size), errors.peaks.get(node)
    peak = largest(errors.errors[node]) if peak is None else peak
    if terms(node) > 1:  # E of a sum is at least the sum of its terms' magnitudes
        peak = peak / min(1.0, errors.arithmetic.sums / errors.arithmetic.step.roundoff)
        most = max(most, peak)
    # False of nan, and beyond float64, where extended precision is not.
    return bool(most + errors.reach * peak < top)


class _View:
    """A node as rules see it; `given` are its inputs after any overflow."""

    def __init__(
        self,
        node: Node,
        errors: Errors,
        found: Mapping[Node, Array],
        peaks: Peaks | None,
    ) -> None:
        self.node, self.errors, self.peaks = node, errors, peaks
        self.name = operation(node)
        self.moves = moves(node)
        self.given = [found.get(source, source.value) for source in node.inputs]
        # Moves and products of powers alone need not know the sign of an infinity.
        if not self.moves and not RULES[self.name].powers:
            for i, source in enumerate(node.inputs):
                if source in found:
                    unsure = np.isinf(self.given[i]) & ~self.has_sign(i)
                    self.given[i] = np.where(unsure, np.nan, self.given[i])

    def computed(self, *arrays: Array) -> Array:
        """The primitive's result for some arrays; nan where it refuses them."""
        try:
            return computed(self.node, *arrays)
        except np.linalg.LinAlgError:  # a matrix that is not finite
            return np.full(self.node.shape, np.nan)

    def is_other(self, i: int) -> Mask:
        """A mask of an input: infinite, nan, or different from the reference."""
        other = self.given[i] != self.node.inputs[i].value  # true for nan
        return as_array(other | ~np.isfinite(self.given[i]))

    def reach(self, i: int) -> Error:
        """The allowed deviation of an input, underflow included."""
        error = self.errors.errors[self.node.inputs[i]]
        return np.where(np.isnan(error), np.inf, self.errors.reach * error)

    def value(self, i: int) -> Array:
        """An input's value in the wide type."""
        return self.node.inputs[i].value

    def may_vanish(self, i: int) -> Mask:
        """A mask of an input: elements that may be zero."""
        tiny = np.abs(self.value(i)) < self.errors.arithmetic.step.smallest
        return as_array(tiny | ~self.has_sign(i))

    def has_sign(self, i: int) -> Mask:
        """A mask of an input: elements that certainly have the reference's sign."""
        return as_array(self.errors.sizes[self.node.inputs[i]] > self.reach(i))


def _overflowing(at: _View) -> Array:
    """The node's value with an overflow wherever one may happen.

    Of the node's error only the part carried from its inputs counts: no last rounding
    leads beyond the largest number.
    """
    found = _RULES.get(at.name, _plain)(at)
    if at.moves:
        return found
    step, node = at.errors.arithmetic.step, at.node
    size, error = at.errors.sizes[node], at.errors.errors[node]
    carried = at.errors.reach * np.maximum(np.where(error < np.inf, error - size, 0), 0)
    size = np.where(np.isinf(node.value), 0.0, size)  # exact, or its source overflowed
    beyond = as_array(size + carried >= step.beyond)
    if at.name in ("add", "subtract"):
        # An operand that is finite is not beyond the largest number.
        ends = (np.abs(at.value(i)) + at.reach(i) for i in (0, 1))
        beyond &= sum(np.minimum(end, step.largest) for end in ends) >= step.beyond
    if at.peaks is not None:
        beyond |= at.peaks.overflow(node)
    beyond &= np.isfinite(found)
    if not beyond.any():
        return found
    infinite = np.copysign(np.inf, node.value)
    return np.where(beyond, np.where(_is_same(at, found), infinite, np.nan), found)


def _clashes(at: _View, size: Array) -> Mask:
    """A mask of elements for which some order of operations gives nan.

    Terms of both signs cancel, and some order makes any of them overflow. Or a factor
    or partial product is zero, and another overflows; in a matrix product, any term's.
    """
    assert at.peaks is not None
    node = at.node
    zero = at.peaks.underflow(node) | (node.value == 0)
    if at.name == "matmul":
        zero |= (at.value(0) == 0).any(axis=-1, keepdims=True)
        zero |= (at.value(1) == 0).any(axis=-2, keepdims=True)
    return as_array(at.peaks.overflow(node) & (zero | cancels(node.value, size)))


def _plain(at: _View) -> Array:
    """The primitive's result; nan for a truth value or an index that nan decides."""
    if at.moves or at.node.value.dtype.kind == "f":
        return at.computed(*at.given)
    known = (g.astype(s.dtype) for g, s in zip(at.given, at.node.inputs, strict=True))
    unknown = np.logical_or.reduce(np.broadcast_arrays(*map(np.isnan, at.given)))
    if unknown.shape != at.node.shape:  # of several one is enough
        how = at.node.attributes
        unknown = unknown.any(axis=how["axis"], keepdims=how["keepdims"])
    return np.where(unknown, np.nan, at.computed(*known))


def _multiplied(at: _View) -> Array:
    """A product, nan for 0 * inf; a choice's weight of 0 gives 0 beside inf as well."""
    clash: Any = False
    for i, j in ((0, 1), (1, 0)):
        no_slope = np.isinf(at.value(i)) & (at.node.value == 0)
        clash = clash | (np.isinf(at.given[i]) & at.may_vanish(j) & ~no_slope)
    return np.where(clash, np.nan, at.computed(*at.given))


def _added_up(at: _View) -> Array:
    """A sum, which may overflow where its terms' magnitudes add up beyond the range."""
    value, reach = at.value(0), at.reach(0)
    size = np.where(np.isfinite(value), np.abs(value), 0.0)
    total = at.computed(size + np.where(np.isfinite(reach), reach, 0.0))
    over = total > at.errors.arithmetic.step.largest
    return _beside(at, over, total, at.computed(*at.given))


def _product(at: _View) -> Array:
    """A matrix product; an element that may be infinite makes its row or column nan."""
    sizes = [np.where(np.isfinite(at.value(i)), np.abs(at.value(i)), 0) for i in (0, 1)]
    total = sizes[0] @ sizes[1]
    over = total > at.errors.arithmetic.step.largest / (1 + at.errors.reach)
    spoiled = at.is_other(0).any(axis=-1, keepdims=True)
    spoiled = spoiled | at.is_other(1).any(axis=-2, keepdims=True)
    return _beside(at, over, total, np.where(spoiled, np.nan, at.node.value))


def _beside(at: _View, over: Mask, total: Array, found: Array) -> Array:
    """A sum whose terms' magnitudes may overflow: nan where they have both signs."""
    value = at.node.value
    found = np.where(over & np.isfinite(found), np.copysign(np.inf, value), found)
    return np.where(over & (cancels(value, total) | np.isinf(value)), np.nan, found)


def _branch(at: _View) -> Array:
    """A `where`; a contested element is that of the branch that is not finite."""
    condition, a, b = at.given
    first, open_ = at.value(0).astype(bool), at.errors.errors[at.node.inputs[0]] > 0
    taken, other = np.where(first, a, b), np.where(first, b, a)
    found = np.where(open_ & np.isfinite(taken) & ~np.isfinite(other), other, taken)
    return np.where(np.isnan(condition), np.nan, found)


def _chosen(at: _View) -> Array:
    """A choice of the largest; nan where an element among these may be infinite."""
    axis = at.node.attributes["axis"]
    other = (at.given[0] != at.value(0)).any(axis=axis, keepdims=True)
    other = other.squeeze(axis) if at.name == "argmax" else other
    return np.where(other, np.nan, at.node.value)


_RULES: dict[str, Callable[[_View], Array]] = {
    "multiply": _multiplied,
    # The sign of a zero is not determined, nor is that of a quotient by it.
    "divide": lambda at: np.where(at.may_vanish(1), np.nan, at.computed(*at.given)),
    **dict.fromkeys(("sum", "sum_to", "cumulative_sum", "scatter_add"), _added_up),
    "matmul": _product,
    "where": _branch,
    **dict.fromkeys(("pick", "argmax"), _chosen),
}


# In another order ------------------------------------------------------------------


@dataclass(frozen=True)
class Peaks:
    """The largest and smallest partial products of every node, in `step`.

    `ends` are log2 of the largest, at least 0, and of the smallest, at most 0. For a
    matrix product of inputs alone the smallest is replaced by the reciprocal of the sum
    of the terms' reciprocals, which is hardly less.
    """

    step: Precision
    ends: dict[Node, Ends] = field(default_factory=dict)

    def overflow(self, node: Node) -> Mask:
        """A mask of elements of which a partial product may overflow."""
        return as_array(self.ends[node][0] > np.log2(self.step.largest))

    def underflow(self, node: Node) -> Mask:
        """A mask: some partial product is at most the smallest normal number."""
        return as_array(self.ends[node][1] <= self.step.least)


def peaks(order: Iterable[Node], step: Precision) -> Peaks:
    """The largest and smallest partial products of every node.

    An infinite value or nan counts as 1: it does not depend on the order.
    """
    found = Peaks(step)
    products: set[Node] = set()  # of inputs alone
    with np.errstate(all="ignore"):
        for node in order:
            given = [found.ends[source] for source in node.inputs]
            most, least = _ends(node, given)
            if _multiplies(node) and products.issuperset(node.inputs):
                products.add(node)
                if operation(node) == "matmul":
                    large, small = zip(*given, strict=True)
                    most = np.maximum(most, _contracted(*large))
                    pairs = zip(node.inputs, small, strict=True)
                    there = _contracted(*(_terms(s, -e) for s, e in pairs))
                    least = np.minimum(least, -there)
            found.ends[node] = most, least
    return found


def cancels(value: Array, size: Array) -> Mask:
    """A mask of sums with terms of both signs, of magnitudes that add up to `size`.

    There |value| falls short of `size` by more than sqrt(eps) of it, eps of float64.
    """
    return as_array(np.abs(value) < size * (1 - np.finfo(float).eps ** 0.5))


@np.errstate(all="ignore")
def magnitudes(order: Iterable[Node], *, lost: bool = False) -> dict[Node, Array]:
    """Each node's magnitude if all terms of sums and products had the same sign.

    Other functions give |value|, as does what is not in the order. With `lost`, so does
    every element that cancellation leaves more than half of the digits of float64.
    """
    sizes: dict[Node, Array] = {}
    for node in order:
        name = operation(node)
        terms = [sizes[n] if n in sizes else np.abs(n.value) for n in node.inputs]
        if name == "divide":  # the divisor's terms are not its own
            sizes[node] = np.abs(terms[0] / node.inputs[1].value)
        elif name == "where":
            sizes[node] = np.where(node.inputs[0].value, *terms[1:])
        elif name == "subtract":
            sizes[node] = as_array(terms[0] + terms[1])
        elif name and (_multiplies(node) or RULES[name].adds_up):
            sizes[node] = np.abs(computed(node, *terms))
        else:
            sizes[node] = np.abs(node.value)
        if lost:
            size, left = sizes[node], np.abs(node.value)
            gone = left <= np.finfo(float).eps ** 0.5 * size
            sizes[node] = np.where(gone, size, left)
    return sizes


def _multiplies(node: Node) -> bool:
    """Whether a node is an input, or a product or a move of its inputs."""
    return moves(node) or operation(node) in ("", "multiply", "matmul", "negative")


def _contracted(a: Exponents, b: Exponents) -> Exponents:
    """The exponents of a matrix product of magnitudes whose exponents are given."""
    largest = [float(np.max(e, initial=-1e300)) for e in (a, b)]  # where all are zero
    total = np.exp2(a - largest[0]) @ np.exp2(b - largest[1])
    exponent = np.log2(total) + sum(largest)
    return np.where(np.isfinite(exponent), exponent, 0.0)


def _terms(node: Node, exponents: Exponents) -> Exponents:
    """The exponents of a node's elements: -inf where it is zero."""
    return np.where(node.value == 0, -np.inf, exponents)


def _ends(node: Node, given: Sequence[Ends]) -> Ends:
    """The largest and the smallest partial product of a node's factors."""
    name = operation(node)
    if name and (powers := RULES[name].powers):
        pairs = [*zip(given, powers, strict=True)]
        most, least = (
            sum(p * ends[i if p > 0 else 1 - i] for ends, p in pairs) for i in (0, 1)
        )
        return np.asarray(most), np.asarray(least)
    large, small = ([ends[i] for ends in given] for i in (0, 1))
    if name == "where":
        chosen = node.inputs[0].value
        return np.where(chosen, *large[1:]), np.where(chosen, *small[1:])
    if moves(node):
        most, least = computed(node, *large), computed(node, *small)
        return np.maximum(most, 0), np.minimum(least, 0)
    own = _log2(np.abs(node.value))
    alone = np.maximum(own, 0), np.minimum(own, 0)
    if name == "matmul":
        a, b = (np.abs(source.value) for source in node.inputs)
        return np.maximum(_log2(a @ b), 0), alone[1]
    if name and RULES[name].adds_up:
        shared = [_terms(s, e) for s, e in zip(node.inputs, small, strict=True)]
        least = np.minimum(alone[1], _total(node, shared))
        return np.maximum(_total(node, large), 0), least
    return alone


def _log2(size: Array) -> Exponents:
    """log2 of a magnitude; 0 where that is zero, infinite or nan."""
    exponent = np.log2(size).astype(np.float64)
    return np.where(np.isfinite(exponent), exponent, 0.0)


def _total(node: Node, exponents: list[Exponents]) -> Exponents:
    """The exponent of a sum of magnitudes whose exponents are given; 0 of no terms.

    The smallest partial products are added up, too: a factor that is taken out of a
    sum is in all terms that are not zero.
    """
    if operation(node) in ("add", "subtract"):
        exponent = np.logaddexp2(*exponents)
        return np.where(np.isfinite(exponent), exponent, 0.0)
    largest = max((float(e.max()) for e in exponents if e.size), default=0.0)
    largest = max(largest, -1e300)  # where all terms are zero
    finite = (np.min(e, initial=0.0, where=np.isfinite(e)) for e in exponents)
    near = largest - min(finite) < -np.finfo(np.float64).minexp
    wide: Any = np.float64 if near else np.longdouble  # five times as slow
    terms = [np.exp2(e.astype(wide) - largest) for e in exponents]
    exponent = (np.log2(computed(node, *terms)) + largest).astype(np.float64)
    return np.where(np.isfinite(exponent), exponent, 0.0)
