"""Large tensors that are right, seen at a fraction of a judgement's cost.

A judgement carries an error bound beside every element of every value, in a type wider
than the one under test. Of a large right tensor less is enough. The radius of an
element is at least its own last rounding and those of the terms behind it
(least_spread.py); an error that the limit times this explains is
explained by the radius. And that the tensor is not vacuous, that nothing overflows and
no divisor may vanish follows from the rules of harness/judging/rounding, of the largest
magnitudes of each node (extents.py) and of some thousand of its elements (grid.py). So
two passes over each value do. What is not accepted here is judged as ever, and nothing
is rejected here.

For float64 the reference is computed in float64, too, beside which a tensor is allowed
half of the limit: the other half is for the reference, which is an honest
implementation itself, whose sums lose less (pairwise.py).

Tensors of 16 bits are accepted as computed in float32 and rounded once.

Left to the judgement: choices among equal numbers, functions that have no rule here,
and tensors of which a quarter might be vacuous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.acceptance.extents import (
    OF_VALUES,
    RULES,
    Extent,
    Unknown,
    View,
    magnitudes,
)
from gradwatch.harness.judging.acceptance.grid import Grid
from gradwatch.harness.judging.acceptance.least_spread import (
    MOVED,
    SURE,
    Places,
    ratios_of_terms,
    rounds,
)
from gradwatch.harness.judging.acceptance.pairwise import CAREFUL
from gradwatch.harness.judging.comparison import SAYS_NOTHING, sentence
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import Arithmetic, arithmetics
from gradwatch.harness.judging.reference import Build, require_subnormals
from gradwatch.harness.judging.rounding.errors import (
    Errors,
    largest,
    limit_for,
    longest_reduction,
)
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]

#: Elements of the largest input from which this is tried: below, calls of Python
#: functions take longer than the passes over the elements.
LARGE = 1 << 14
#: Share of the elements that are looked at that may be vacuous: a tensor is from a half
#: on.
UNKNOWN = 0.25
#: By how much E may be more than what is found on the grid: a mean of 32 terms, none of
#: which is negative, is off by a factor of 4 where a few terms are nearly all of a sum.
MARGIN = 4.0
#: What float64 is allowed beside a reference in float64.
HALF = 0.5
#: Elements that are looked at where they are, as they are farthest off.
FARTHEST = 6
#: Elements that are compared at a time: a few arrays of them fit into a core's cache.
BLOCK = 1 << 14
#: Elements below which a value is held.
SMALL = 1 << 12
#: The longest way back from a value that is not held to those that are.
STEPS = 6
_LEAST = 5e-324  # instead of a division by zero


def is_large(got: Mapping[str, Array | None]) -> bool:
    """Whether some tensor has so many elements that it is looked at first."""
    return any(a is not None and a.size >= LARGE for a in got.values())


@dataclass(frozen=True)
class Looked:
    """What a look at some tensors has shown.

    Attributes:
        judgements: Of those that are right; the others have to be judged.
        far: Of the others, flat positions of the elements that are farthest off.
        longest: The number of terms of the longest reduction.
        size: Elements of all values of the graph.
    """

    judgements: dict[str, Judgement]
    far: dict[str, Places]
    longest: int
    size: int


def looked_at(
    build: Build,
    dtype: str,
    got: Mapping[str, Array | None],
    dtypes: Mapping[str, str],
    compute: str | None = None,
) -> Looked:
    """Judgements of those tensors that are right, and where the others are far off.

    Args:
        build: Gives the nodes of the tensors by name, not evaluated, for leaves of a
            type.
        dtype: The precision under test.
        got: The tensors by name.
        dtypes: Names of the dtypes that they have where they come from.
        compute: The precision inside; None is what frameworks do.
    """
    ways = arithmetics(dtype, compute)
    held = {
        name: array
        for name, array in got.items()
        if array is not None and dtypes.get(name) == dtype
    }
    require_subnormals()
    with graph.ties("first"):
        nodes = build(np.dtype(np.float64))
    held = {n: a for n, a in held.items() if nodes[n].shape == a.shape}
    look = _Look(nodes, ways[0])
    judgements = look.judgements(held) if held else {}
    longest, size = longest_reduction(look.order), sum(n.size for n in look.order)
    return Looked(judgements, look.far, longest, size)


def _use_pages_again(elements: int) -> None:
    """Have the allocator keep, of what is freed, as much as a judgement holds.

    glibc returns the end of its heap to the system where more than twice the largest
    block that was ever freed lies unused there (mallopt(3), M_MMAP_THRESHOLD). A
    judgement holds about six arrays, so each would ask for all its pages again, which
    takes up to half as long as the judgement. This block is never touched.
    """
    np.empty(3 * elements)


class _Look:
    """A graph in float64, with the extent of every node."""

    def __init__(self, nodes: Mapping[str, Node], arithmetic: Arithmetic) -> None:
        self.nodes, self.arithmetic = nodes, arithmetic
        self.precision, self.dtype = arithmetic.step, arithmetic.stored.name
        self.order = graph.topological_order(nodes.values())
        leaves = [node.size for node in self.order if node.primitive is None]
        _use_pages_again(max(leaves, default=0))
        self._extents: dict[Node, Extent] = {}
        names = {n.primitive.name for n in self.order if n.primitive}
        self.unknown = bool(names - RULES.keys())
        self.unknown |= arithmetic.name not in ("float64", "float32")
        self.far: dict[str, Places] = {}
        self.limit = limit_for(longest_reduction(self.order))
        self.reach = self.limit * self.precision.roundoff
        self.tiny = self.precision.smallest / self.precision.roundoff

    def grid(self) -> Grid:
        """A new grid; not kept here, as a circle would hold all values until later."""
        axes = max(node.ndim for node in self.order if node.primitive is None)
        return Grid(axes, self.extent, self.reach, self.tiny)

    def judgements(self, got: Mapping[str, Array]) -> dict[str, Judgement]:
        """The judgements of right tensors; `far` holds what the others are."""
        with np.errstate(all="ignore"), graph.computing(self.compute):
            nodes, order = self.nodes, self.order
            limit = self.limit
            judged = [nodes[name] for name in got]
            graph.forward_dropping(judged, _passing(order, judged))
            share = HALF if self.dtype == "float64" else 1.0
            errors = Errors(self.arithmetic, limit * share, {}, {}, {})
            grid, found = self.grid(), {}
            for name, array in got.items():
                try:
                    asked = name, nodes[name], array, errors, limit, grid
                    found[name] = self._judged(*asked)
                except Unknown:
                    self.far.setdefault(name, _farthest(array, nodes[name].value))
            return found

    def compute(
        self, node: Node, arrays: Sequence[Array | None], spare: Array | None = None
    ) -> Array:
        """A node's value; its extent is noted, or that one is not known."""
        assert node.primitive is not None
        name = node.primitive.name
        if self.dtype == "float64" and name in CAREFUL:
            value = CAREFUL[name](node, arrays)
        elif spare is None or (name in OF_VALUES and arrays[OF_VALUES[name]] is spare):
            value = graph.computed(node, arrays)
        else:
            value = graph.computed(node, arrays, spare)
        if not self.unknown:
            try:
                self._note(name, node, value)
            except Unknown:
                self.unknown = True
        return value

    def _note(self, name: str, node: Node, value: Array) -> None:
        source = [self.extent(n) for n in node.inputs]
        most, least = source[0].most, source[0].least
        if name not in MOVED:
            most, least = magnitudes(value)
        if most == np.inf and any(s.infinite for s in source):  # of a mask
            finite = np.isfinite(value)
            most, least = float(largest(np.abs(value[finite]), initial=0.0)), None
            self.unknown |= bool(np.isnan(value).any())
        infinite = any(s.infinite for s in source) and not np.isfinite(value).all()
        error = RULES[name](View(node, value, source, most, self.reach, self.tiny))
        known = error == error  # else a divisor may vanish, as far as is known
        self._extents[node] = Extent(
            most, float(error) if known else np.inf, least, infinite
        )
        if not most < self.precision.largest / 4:  # true for nan
            self.unknown = True

    def _share_of_silent(self, node: Node, reach: float, grid: Grid) -> float:
        """Of the elements on a grid, the share that may be vacuous.

        E of the whole node may show already that few are; else each has its own.
        """
        sizes = np.abs(grid.values(node))
        least = 16 * reach * self.tiny  # underflow alone: zero is as good
        says = np.maximum(SAYS_NOTHING * sizes, least)
        silent = _share(reach * self.extent(node).error > says)
        if silent > UNKNOWN:
            silent = _share(~(MARGIN * reach * grid.at(node).error <= says))
        return silent

    def extent(self, node: Node) -> Extent:
        """The largest magnitude and E of a node."""
        if node not in self._extents:  # a leaf
            value, exact = node.value, node.size > 1 or node.dtype.kind != "f"
            most, least = magnitudes(value)
            infinite = most == np.inf
            if infinite:
                finite = np.abs(value[np.isfinite(value)])
                most, least = float(largest(finite, initial=0.0)), None
            exact = exact or bool((self.precision.round(value) == value).all())
            error = 0.0 if exact else most
            self._extents[node] = Extent(most, error, least, infinite)
        return self._extents[node]

    def _judged(
        self,
        name: str,
        node: Node,
        got: Array,
        errors: Errors,
        limit: float,
        grid: Grid,
    ) -> Judgement:
        value, roundoff = node.value, errors.arithmetic.roundoff
        if got.shape != value.shape or value.dtype.kind != "f" or not value.size:
            raise Unknown
        if node.primitive is None and not np.array_equal(got, value):
            raise Unknown  # a zero, or an input itself
        blunt = limit * roundoff**0.5
        blunt *= np.inf if self.unknown else self.extent(node).error
        ratios, left, error = _beyond_own_rounding(got, node, errors, blunt)
        if left.size:
            sharp = np.abs(value.reshape(-1)[left]) > blunt
            there = ratios_of_terms(node, left, error, errors, sharp)
            if not (there <= errors.limit).all():
                there = np.where(np.isnan(there), np.inf, there)
                first = left[np.argsort(-there, kind="stable")[:FARTHEST]]
                self.far[name] = np.append(first, _farthest(got, value))
                raise Unknown
            at = int(there.argmax())
            ratios.append((float(there[at]), int(left[at])))
        if self.unknown:
            raise Unknown
        if self._share_of_silent(node, limit * roundoff, grid) > UNKNOWN:
            raise Unknown
        ratio, place = max(ratios)
        worst = np.unravel_index(place, value.shape)
        judgement = Judgement(
            name,
            "agree",
            ratio=ratio,
            limit=limit,
            worst_index=tuple(int(i) for i in worst),
            got=float(got[worst]),
            expected=float(value[worst]),
            radius=abs(float(got[worst]) - float(value[worst])) / ratio
            if ratio
            else 0.0,
            radius_kind="least",
            compute=self.arithmetic.name,
        )
        return judgement.changed(message=sentence(judgement, self.dtype))


def _farthest(got: Array, value: Array) -> Places:
    """Flat positions of the largest errors; of nan before all others."""
    with np.errstate(all="ignore"):
        error = np.abs(got.reshape(-1) - value.reshape(-1)).astype(np.float64)
        error[(got == value).reshape(-1)] = 0.0
    error[np.isnan(error)] = np.inf
    few = min(FARTHEST // 2, error.size)
    places = np.argpartition(error, error.size - few)[error.size - few :]
    return np.asarray(places[error[places] > 0])


def _share(mask: NDArray[np.bool_]) -> float:
    return float(np.count_nonzero(mask) / mask.size)


def _passing(order: Sequence[Node], kept: Sequence[Node]) -> Callable[[Node], bool]:
    """Of which nodes the values need not be held: a few elements are soon computed.

    That is, from values that are held, in at most `STEPS` steps.
    """
    held, steps = {*kept}, dict[Node, int]()
    for node in order:
        if node.primitive and node.primitive.name == "matmul":
            held |= {*node.inputs}
    for node in order:
        if node not in held and _soon_computed(node):
            behind = 1 + max(steps.get(source, 0) for source in node.inputs)
            if behind <= STEPS:
                steps[node] = behind
    return lambda node: node in steps and node.size >= SMALL


def _soon_computed(node: Node) -> bool:
    step = node.primitive
    return step is not None and (step.elementwise or step.name in MOVED)


def _beyond_own_rounding(
    got: Array, node: Node, errors: Errors, blunt: float
) -> tuple[list[tuple[float, int]], Places, Array]:
    """Elements that are off by more than their own last rounding explains.

    The bound judges where it leaves half of the digits, and is at least that rounding;
    for what may be smaller than `blunt`, the spread does. Some elements at a time, so
    that what is computed on the way stays in the cache.

    Returns:
        The largest ratio of each block to that rounding, and its flat position; the
        positions of the elements that are off by more; how far they are off.
    """
    unit, value = errors.arithmetic.roundoff, node.value
    sure, all_ = SURE * errors.limit * unit, errors.limit * unit
    if not rounds(node):
        sure = all_ = 0.0
    stored = errors.arithmetic.stored
    once = 1.01 * stored.roundoff if stored is not errors.arithmetic.step else 0.0
    ratios, left, off = [], [], []
    sides = got.reshape(-1), value.reshape(-1)
    space = np.empty((2, min(BLOCK, value.size)))
    for start in range(0, value.size, BLOCK):
        given, right = (side[start : start + BLOCK] for side in sides)
        error, ratio = space[:, : right.size]
        np.copyto(error, given)  # a third faster than to subtract of two dtypes
        error -= right
        np.abs(error, out=error)
        np.abs(right, out=ratio)
        if once:
            error -= np.minimum(once * ratio, error)
        ratio += _LEAST
        np.divide(error, ratio, out=ratio)
        worst = int(ratio.argmax())
        if not ratio[worst] <= sure:  # true for nan
            more = np.flatnonzero(~(ratio <= sure))
            sharp = all_ * (np.abs(right[more]) - (1 - SURE) * blunt)
            more = more[~(error[more] <= sharp)]
            left.append(more + start)
            off.append(error[more])
            ratio[more] = 0.0
            worst = int(ratio.argmax())
        ratios.append((float(ratio[worst]) / unit, start + worst))
    none = np.zeros(0, np.intp)
    return ratios, np.concatenate([none, *left]), np.concatenate([none * 0.0, *off])
