"""What a radius is at least: the roundings of the nearest nodes behind an element.

The spread costs 18 evaluations of the graph, and can only accuse more than the bound.
In a large tensor there always are elements that have nearly cancelled, so that the
bound leaves them few digits, and nearly all of them are right: what they are off by is
no more than what rounding makes of the terms that cancelled. That is known without any
evaluation. The perturbations of one node are independent of all others and go from
-`UNIT` to `UNIT` roundoffs, so that an element moves by UNIT / sqrt(3) times a node's
own rounding times the element's slope by it, and the squares of these add up. An error
that `limit` times a quarter of the root explains is explained by the spread, too, which
is measured to a factor of 2 or 3. So a large tensor is accepted without it.

Slopes are known through sums, products, quotients and moves, and of those nodes of
which all ways to the element are among these: what goes another way might cancel, as
(a + b) - a does not depend on what a is rounded to. What is left out makes the spread
larger. The bound adds up magnitudes: it is at least the sum of these roundings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.errors import (
    Error,
    Errors,
    terms,
    terms_of_scatter,
)
from gradwatch.harness.judging.rounding.sums import summed_axes
from gradwatch.harness.judging.rounding.thresholds import SMALL, UNIT
from gradwatch.impls.graph import Node, topological_order

Array = NDArray[Any]
Places = NDArray[np.intp]
Part = slice | Places  # of an axis; of at most one in an array some places

#: A quarter of the root mean square of one perturbation, in roundoffs. The rms of the 8
#: pairs of the spread is below a quarter of the true one once in 7,000 times: the sum
#: of their squares is chi-squared of 8 degrees of freedom, and less than 1/2.
SURE = SMALL * UNIT / 3**0.5
#: How many nodes lie between an element and the roundings that are looked at: few for
#: most elements, more for those that these do not explain.
DEPTHS = (2, 5, 12)
#: Positions up to which the first of these is left out: calls take longer than they do.
SOON = 4096
#: Terms of a sum that are looked at, but by the last of these: the others make its
#: rounding larger.
FEW = 256
#: What only moves elements.
MOVED = frozenset(("reshape", "permute_dims", "broadcast_to"))
#: Their E counts one rounding of the result; that of exp does not where it is exact.
_ROUNDED = frozenset(
    (
        *("add", "subtract", "multiply", "divide", "square", "sqrt"),
        *("log", "sin", "cos", "tanh", "sigmoid", "erf", "atan"),
    )
)
_POWERS = frozenset(("exp", "exp2"))
SUMS = frozenset(("sum", "sum_to"))
_ALSO_ROUNDED = frozenset((*_POWERS, "cumulative_sum", "matmul"))


def rounds(node: Node) -> bool:
    """Whether each element has a rounding of its own, or is one that was moved."""
    while node.primitive and node.primitive.name in MOVED:
        (node,) = node.inputs
    name = node.primitive.name if node.primitive else ""
    return name in _ROUNDED | _ALSO_ROUNDED or (name in SUMS and terms(node) > 1)


class Least(NamedTuple):
    """What the radii of some elements are at least."""

    bound: Error
    spread: Error


class _Way(NamedTuple):
    """From where elements come, by which slope, and through how many nodes.

    `found` counts the ways that were added up; it is negative where they differ.
    """

    places: Places
    slope: Error
    depth: int
    found: int


class _Behind(NamedTuple):
    """The nodes behind one, each after its inputs, and how often each is used."""

    order: list[Node]
    users: Counter[Node]


def _behind(node: Node) -> _Behind:
    order = topological_order([node])
    return _Behind(order, Counter(s for other in order for s in other.inputs))


def least_radii(
    node: Node,
    places: Places,
    errors: Errors,
    depth: int = DEPTHS[-1],
    behind: _Behind | None = None,
) -> Least:
    """What bound and spread are at least, at flat positions of a node's value."""
    order, users = behind or _behind(node)
    few, picked = FEW if depth < DEPTHS[-1] else None, _Picked()
    ways = {node: _Way(places, np.ones(places.size), 0, users[node])}
    total, squares = np.zeros(places.size), np.zeros(places.size)
    for other in reversed(order):
        way = ways.get(other)
        if way is None or way.found != users[other]:
            continue  # there may be other ways
        reached = np.abs(way.slope) * _own(other, way.places, errors, few, picked)
        total += reached
        squares += reached * reached
        if way.depth < depth and (inside := _inside(other, few)) is not None:
            bound, square = (found[way.places] for found in inside)
            total += np.abs(way.slope) * bound
            squares += way.slope * way.slope * square
        if way.depth < depth:
            for source, there, slope in _sources(other, way.places, picked):
                _add(ways, source, there, slope * way.slope, way.depth)
    unit = errors.arithmetic.roundoff
    return Least(unit * total, SURE * unit * np.sqrt(squares))


def ratios_of_terms(
    node: Node, places: Places, error: Error, errors: Errors, sharp: Any = False
) -> Error:
    """Errors over the least radius: of as few nodes as make it at most the limit.

    Args:
        node: A tensor.
        places: Flat positions of some of its elements.
        error: How far these are off.
        errors: The arithmetic and the limit.
        sharp: Where the bound is the judge; elsewhere it is the spread.
    """
    ratios = np.full(places.size, np.inf)
    sharp = np.broadcast_to(sharp, places.shape)
    left, behind = np.arange(places.size), _behind(node)
    for depth in DEPTHS[places.size <= SOON :]:
        least = least_radii(node, places[left], errors, depth, behind)
        ratios[left] = error[left] / np.where(sharp[left], least.bound, least.spread)
        left = left[~(ratios[left] <= errors.limit)]  # true for nan
        if not left.size:
            break
    return ratios


def _add(
    ways: dict[Node, _Way], source: Node, places: Places, slope: Error, depth: int
) -> None:
    """One more way to a node; none is enough where it comes from elsewhere."""
    known = ways.get(source)
    if known is None:
        ways[source] = _Way(places, slope, depth + 1, 1)
    elif known.found > 0 and (
        known.places is places or np.array_equal(known.places, places)
    ):
        deeper = max(known.depth, depth + 1)
        ways[source] = _Way(places, known.slope + slope, deeper, known.found + 1)
    else:
        ways[source] = known._replace(found=-1)


def _own(
    node: Node, places: Places, errors: Errors, few: int | None, picked: _Picked
) -> Error:
    """What a node's own rounding is, in units of the unit roundoff; 0 if unknown."""
    name = node.primitive.name if node.primitive else ""
    if name in SUMS and terms(node) > 1 and errors.sums == 1:
        return _of_terms(node, few, places)
    if name == "scatter_add" and terms(node) > 1 and errors.sums == 1:
        assert node.primitive is not None
        size = np.abs(node.inputs[0].value)
        size = node.primitive.compute(size, **node.attributes).reshape(-1)
        return np.where(terms_of_scatter(node)[places] > 1, size[places], 0.0)
    if name == "matmul" and errors.sums == 1:
        return _of_products(node, few)[places]
    if name in _ROUNDED or name in _POWERS:
        size = np.abs(picked.values(node, places))
        return np.where(size == 1, 0.0, size) if name in _POWERS else size
    return np.zeros(places.size)


def _inside(node: Node, few: int | None) -> tuple[Error, Error] | None:
    """Of a sum of matrix products: what their own roundings add, and its square."""
    step = node.primitive
    if step is None or step.name not in (*SUMS, "scatter_add"):
        return None
    moves, source = [], node.inputs[0]
    while source.primitive and source.primitive.name in MOVED:
        moves.append(source)
        (source,) = source.inputs
    if source.primitive is None or source.primitive.name != "matmul":
        return None
    own: Array = _of_products(source, few).reshape(source.shape)
    for move in reversed(moves):
        assert move.primitive is not None
        own = move.primitive.compute(own, **move.attributes)
    bound, square = (
        np.asarray(step.compute(e, **node.attributes)).reshape(-1)
        for e in (own, own * own)
    )
    return bound, square


def _of_terms(node: Node, few: int | None, places: Places) -> Error:
    """Sums of the magnitudes of a sum's terms, or of some of them, at positions.

    Where few of the elements along an axis are asked for, the terms of the others are
    not looked at.
    """
    (source,) = node.inputs
    axes, shape = summed_axes(node, source.shape), source.shape
    parts: list[Part] = [slice(None)] * source.ndim
    if few and axes:
        longest = max(axes, key=lambda i: shape[i])
        parts[longest] = slice(None, None, -(-terms(node) // few))
    lengths = [1 if i in axes else n for i, n in enumerate(shape)]
    at = list(np.unravel_index(places, lengths)) if lengths else []
    if lengths and max(lengths) > 2 * places.size:
        widest = lengths.index(max(lengths))
        parts[widest], at[widest] = np.unique(at[widest], return_inverse=True)
    found = np.abs(_part(source, parts)).sum(axis=axes, keepdims=True)
    return np.asarray(found[tuple(at)], dtype=np.float64)


def _part(node: Node, parts: Sequence[Part]) -> Array:
    """A part of a value; it is computed, if the value was dropped."""
    step = node.primitive
    if node.held or step is None or step.name == "reshape":
        return node.value[tuple(parts)]
    if step.name == "permute_dims":
        axes = node.attributes["axes"]
        (source,) = node.inputs
        there = _part(source, [parts[axes.index(i)] for i in range(source.ndim)])
        return np.transpose(there, axes)
    if step.elementwise or step.name == "broadcast_to":
        inputs = [_part(source, _parts(source, parts)) for source in node.inputs]
        if step.elementwise:
            return np.asarray(step.compute(*inputs, **node.attributes))
        lengths = zip(node.shape, parts, strict=True)
        shape = [
            len(range(n)[part]) if isinstance(part, slice) else part.size
            for n, part in lengths
        ]
        return np.broadcast_to(inputs[0], shape)
    return node.value[tuple(parts)]


def _parts(source: Node, parts: Sequence[Part]) -> list[Part]:
    """Of an input that is copied along some axes."""
    inner = parts[len(parts) - source.ndim :]
    lengths = zip(source.shape, inner, strict=True)
    return [slice(None) if n == 1 else part for n, part in lengths]


def _of_products(node: Node, few: int | None) -> Error:
    """Sums of the magnitudes of a matrix product's terms, a thousandth less.

    float32 is off by less in sums of up to 8,000 terms. Where its range ends it gives 0
    or an infinity: that is no rounding.
    """
    a, b = (source.value for source in node.inputs)
    step = max(-(-a.shape[-1] // few), 1) if few else 1
    a, b = (np.abs(x).astype(np.float32) for x in (a[..., ::step], b[..., ::step, :]))
    total = 0.999 * (a @ b).astype(np.float64).reshape(-1)
    return np.where(np.isfinite(total), total, 0.0)


def _sources(
    node: Node, places: Places, picked: _Picked
) -> list[tuple[Node, Places, Any]]:
    """The inputs of which slopes are known: nodes, flat positions, slopes."""
    name = node.primitive.name if node.primitive else ""
    if name in MOVED:
        return [(node.inputs[0], picked.behind(node, 0, places), 1.0)]
    if name not in ("add", "subtract", "negative", "multiply", "divide"):
        return []
    there = [picked.behind(node, i, places) for i in range(len(node.inputs))]
    signs = {"add": (1.0, 1.0), "subtract": (1.0, -1.0), "negative": (-1.0,)}
    if name in signs:
        return list(zip(node.inputs, there, signs[name], strict=True))
    a, b = map(picked.values, node.inputs, there)
    slopes = (b, a) if name == "multiply" else (1 / b, -a / (b * b))
    return list(zip(node.inputs, there, slopes, strict=True))


class _Picked:
    """Values of nodes at flat positions, and where these come from; each found once.

    Positions are known by identity: the same ones serve all nodes of a shape.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Node, int], Error] = {}
        self._behind: dict[tuple[Any, ...], Places] = {}
        self._kept: list[Places] = []  # so that no other array has the identity

    def values(self, node: Node, places: Places) -> Error:
        """A node's values, in float64; computed, if they were dropped."""
        key = node, id(places)
        if key not in self._values:
            self._kept.append(places)
            self._values[key] = self._found(node, places)
        return self._values[key]

    def behind(self, node: Node, i: int, places: Places) -> Places:
        """Where elements of a node come from in an input, flat."""
        assert node.primitive is not None
        source, name = node.inputs[i], node.primitive.name
        if source.shape == node.shape and name not in MOVED:
            return places
        axes = node.attributes["axes"] if name == "permute_dims" else ()
        key = source.shape, node.shape, name == "reshape", axes, id(places)
        if key not in self._behind:
            self._kept.append(places)
            move = _moved if name in MOVED else _broadcast
            self._behind[key] = move(source, node, places)
        return self._behind[key]

    def _found(self, node: Node, places: Places) -> Error:
        step = node.primitive
        if step and not node.held and (step.elementwise or step.name in MOVED):
            inputs = [
                self.values(source, self.behind(node, i, places))
                for i, source in enumerate(node.inputs)
            ]
            if step.name in MOVED:
                return inputs[0]
            return np.asarray(step.compute(*inputs, **node.attributes))
        value = node.value
        if value.flags.c_contiguous:
            picked = value.reshape(-1)[places]
        else:
            picked = value[np.unravel_index(places, value.shape)]
        return np.asarray(picked, dtype=np.float64)


def _broadcast(source: Node, node: Node, places: Places) -> Places:
    """Where the elements of an elementwise node come from in one input."""
    if source.shape == node.shape:
        return places
    if not source.ndim:
        return np.zeros_like(places)
    at = np.unravel_index(places, node.shape)[node.ndim - source.ndim :]
    inside = zip(at, source.shape, strict=True)
    kept = tuple(np.zeros_like(i) if n == 1 else i for i, n in inside)
    return np.asarray(np.ravel_multi_index(kept, source.shape))


def _moved(source: Node, node: Node, places: Places) -> Places:
    """Where elements of a node that only moves its input come from."""
    assert node.primitive is not None
    if node.primitive.name == "reshape":
        return places
    if node.primitive.name == "broadcast_to":
        return _broadcast(source, node, places)
    axes = node.attributes["axes"]
    at = np.unravel_index(places, node.shape)
    back = [at[axes.index(i)] for i in range(source.ndim)]
    return np.asarray(np.ravel_multi_index(tuple(back), source.shape))
