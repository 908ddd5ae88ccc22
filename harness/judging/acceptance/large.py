"""Large tensors that are right, seen at a fraction of a judgement's cost.

A judgement carries an error bound beside every element of every value, in a type wider
than the one under test. Of a large right tensor less is enough: one pass over each
value shows that each error is within the least that its radius can be. That the tensor
is not vacuous, as it may overflow or a divisor vanish, follows from the bound of some
thousand of its elements (parts.py). No tensor is rejected here: those that are not
accepted are judged in full.

**The least radius.** The perturbations of one node are independent of all others and go
from -`UNIT` to `UNIT` roundoffs, so that an element moves by UNIT / sqrt(3) times the
node's own rounding times the element's slope by it, and the squares of these add up.
The spread, which is measured to a factor of 2 or 3, is at least a quarter of the root
of those that are followed, and the bound at least the sum of their magnitudes. They
are followed through moves and elementwise functions, whose slopes are those of their
VJP rules (impls/graph/elements.py), from nodes of which all paths to the element are
among these: a term on another path might cancel them, as (a + b) - a does not depend
on how a is rounded.

For float64 the reference is computed in float64, too, its sums in a wider type; beside
it a tensor is allowed half of the limit, as it is an honest implementation itself.
Tensors of 16 bits are accepted as computed in float32 and rounded once. Choices among
equal numbers, and tensors of which a quarter may be vacuous, are judged in full.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import Arithmetic, arithmetics
from gradwatch.harness.judging.radii import Radii
from gradwatch.harness.judging.reference import Asked
from gradwatch.harness.judging.rounding.analysis import (
    RULES,
    At,
    Error,
    Table,
    exact_at_one,
    limits,
    operation,
    terms,
)
from gradwatch.harness.judging.rounding.thresholds import MOST, SMALL, UNIT
from gradwatch.harness.judging.verdict import Tensors, sentence, share_of_silent
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, as_array
from gradwatch.impls.graph.blocks import forward_in_blocks
from gradwatch.impls.graph.elements import (
    INDEXED,
    MOVED,
    Elements,
    Source,
    soon_computed,
    terms_of_scatter,
)
from gradwatch.impls.graph.engine import summed_axes
from gradwatch.impls.graph.parts import (
    SUMS,
    Box,
    Held,
    Parts,
    Places,
    cut_of,
    deep_calls,
)

Array = NDArray[Any]
Seen = tuple[bool, float, Places, float]
#: The largest ratios of elements, with positions and right values; and of elements that
#: may be too far off the positions, right values and errors.
Compared = tuple[list[tuple[float, int, float]], Places, Array, Array]

#: Elements of the largest tensor in a sample.
PLACES = 1024
#: Least size of the largest input for which this is tried: below, calls of Python
#: functions take longer than the passes over the elements.
LARGE = 1 << 14
#: Terms of a matrix product in float64 that are added up one by one.
ONE_BY_ONE = 32
#: Number of elements farthest off that are always judged where they are.
FARTHEST = 3
#: Elements off by more than their own rounding, of which right tensors have fewer.
MANY = 1 << 20
#: A value so many times larger than all tensors, and than this, is computed in parts.
FAR_LARGER, FAR, TURNS = 2, 1 << 22, 8
#: Elements that are compared at a time: a few arrays of them fit into a core's cache.
BLOCK = 1 << 14
#: Values of fewer elements, or of a smaller share of the largest's, are held.
HELD, SHARE = 1 << 12, 1 / 1024
#: How many nodes lie between an element and the roundings that are looked at.
DEPTH = 12
#: How many elements of a node are followed for one element.
APART = 4
#: Primitives each of whose elements is a sum.
SUMMED = frozenset(("cumulative_sum", "matmul"))
#: Terms along an axis of a sum that are looked at first.
FEW = 256
#: Elements of values, of so many nodes at most, that are computed for radii at a time.
TOGETHER, NODES = 1 << 22, 1 << 6
#: Depths and terms that are looked at, one after another, while these do not suffice.
LOOKS = (2, FEW), (DEPTH, FEW), (DEPTH, 4 * FEW), (DEPTH, sys.maxsize)
#: A quarter of the root mean square of one perturbation, in roundoffs. The rms of the 8
#: pairs of the spread is below a quarter of the true one once in 7,000 times: the sum
#: of their squares is chi-squared of 8 degrees of freedom, and less than 1/2.
SURE = SMALL * UNIT / 3**0.5


class Look:
    """The result of the cheap test of some tensors. No value of the graph is held.

    Attributes:
        judgements: Of the right tensors; the others have to be judged.
        far: For each other tensor, positions of its farthest, then of all wrong ones.
        longest: The number of terms of the longest reduction.
        skipped: Names of tensors with untested elements in the box around wrong ones.
        vague: Whether a choice has a tie, or a tensor may be vacuous: no part shows it.
        size: The number of elements of all values of the graph.
        operations: The number of nodes of the graph.
    """

    def __init__(
        self, asked: Asked, got: Tensors, dtypes: Mapping[str, str], hasty: bool = False
    ) -> None:
        """Test the tensors that `Question.judge` was given."""
        with graph.ties("first"):
            nodes = asked.build(np.dtype(np.float64))
        order, dtype = graph.topological_order(nodes.values()), asked.dtype
        self.arithmetic, self.dtype = arithmetics(dtype, asked.compute)[0], dtype
        self.unsure, self.vague, self.hasty = False, False, hasty
        self.judgements, self.far = dict[str, Judgement](), dict[str, Places]()
        self.skipped, (self.longest, self.limit) = set[str](), limits(order)
        self.size, self.operations = sum(n.size for n in order), len(order)
        self._axes = max(node.ndim for node in order if node.primitive is None)
        there = ((n, a) for n, a in got.items() if dtypes.get(n) == dtype)
        given = {n: a for n, a in there if a is not None and a.shape == nodes[n].shape}
        found = defaultdict[str, list[Seen]](list)
        with np.errstate(all="ignore"), graph.computing(self._computed), deep_calls():
            for axis, places, some in _in_turn({n: nodes[n] for n in given}):
                order = graph.topological_order(some.values())
                at: Any = (*[slice(None)] * axis, places) if places.size else ...
                parts = {name: given[name][at] for name in some}
                compared = self._compared(parts, some, order)
                self._sampled = self._sampled_of({n: some[n] for n in compared})
                if self.dtype == "float64":  # the reference may overflow as well
                    values = (n.value for n in order if n.held and n.inputs)
                    self.unsure |= not all(np.isfinite(v).all() for v in values)
                for name, part in parts.items():
                    seen = self._seen(name, some[name], part, compared[name])
                    if places.size:
                        inside = [*np.unravel_index(seen[2], part.shape)]
                        inside[axis] = places[inside[axis]]
                        seen[2][:] = np.ravel_multi_index(inside, given[name].shape)
                    found[name].append(seen)
                del order, some  # before other values are computed
        for name, ones in found.items():
            ones.sort(key=lambda one: one[:2], reverse=True)
            doubtful, ratio, places, right = ones[0]
            if doubtful:
                self.far[name] = np.concatenate([one[2] for one in ones if one[0]])
                continue
            worst = np.unravel_index(int(places[0]), given[name].shape)
            judgement = Judgement(
                name,
                "agree",
                ratio=ratio,
                limit=self.limit,
                worst_index=tuple(int(i) for i in worst),
                got=float(given[name][worst]),
                expected=right,
                radius=abs(float(given[name][worst]) - right) / ratio if ratio else 0.0,
                radius_kind="least",
                compute=self.arithmetic.name,
            )
            message = sentence(judgement, self.dtype)
            self.judgements[name] = replace(judgement, message=message)

    @property
    def room(self) -> float:
        """The limit of a ratio; in float64 the reference takes half of it."""
        return self.limit / (2 if self.dtype == "float64" else 1)

    def _computed(
        self, node: Node, arrays: Sequence[Any], spare: Array | None = None
    ) -> Array:
        """The value of a node; a choice among equal numbers is noted in `unsure`.

        Added up one by one, equal terms round the same way each time, in NumPy as in
        the kernel under test. A reference in float64 must not share that loss.
        """
        a, b = arrays[0], arrays[-1]
        match operation(node):
            case "share" | "sign" as name:
                self.unsure |= bool((a == (b if name == "share" else 0)).any())
            case "pick":
                top = np.max(a, axis=node.attributes["axis"], keepdims=True)
                self.unsure |= np.count_nonzero(a == top) != top.size
            case "matmul" if self.dtype == "float64":
                starts = range(0, max(a.shape[-1], 1), ONE_BY_ONE)
                some = (slice(start, start + ONE_BY_ONE) for start in starts)
                products = (a[..., terms] @ b[..., terms, :] for terms in some)
                return as_array(functools.reduce(operator.iadd, products))
            case "cumulative_sum" if self.dtype == "float64":
                total = np.cumsum(a, node.attributes["axis"], np.longdouble)
                return as_array(total, np.float64)
            case "sum" | "sum_to" if self.dtype == "float64":
                total = np.sum(a, summed_axes(node, a.shape), np.longdouble)
                return as_array(total, np.float64).reshape(node.shape)
        return graph.computed(node, arrays, spare)

    def _compared(
        self, got: Tensors, nodes: Mapping[str, Node], order: Sequence[Node]
    ) -> Mapping[str, list[Compared]]:
        """Evaluate tensors, and compare each block while it is in the cache."""
        self._least = Least(self.arithmetic)  # without the values of other turns
        found = defaultdict[str, list[Compared]](list)
        for name, row, node in forward_in_blocks(nodes, passing(order)):
            if node.dtype.kind == "f" and node.size:
                start = row * math.prod(node.shape[1:])
                some = as_array(got[name]).reshape(-1)[start : start + node.size]
                found[name].append(self._beyond_own_rounding(some, node, start))
        return found

    def _seen(
        self, name: str, node: Node, got: Array, compared: Sequence[Compared]
    ) -> Seen:
        """Whether a tensor may be wrong; its largest ratio; positions; the right value.

        The positions of a tensor that may be wrong are those of its elements farthest
        off by ratio, by relative error and by error, and then of all that are off.
        """
        self._least = Least(self.arithmetic)
        # Not a zero, or an input itself.
        same = node.primitive is not None or np.array_equal(got, node.value)
        if not (same and compared):
            off = got.reshape(-1) != node.value.reshape(-1)
            return True, 0.0, np.flatnonzero(off), 0.0
        limit, unit = self.room, self.arithmetic.step.roundoff
        silent, blunt = self._sampled[name]
        self.vague |= (vague := self.unsure or silent > MOST / 2)
        ratios = [ratio for one in compared for ratio in one[0]]
        if self.hasty and sum(one[1].size for one in compared) > MANY:
            compared = self._outside(name, node, got.reshape(-1), compared, blunt)
        _, *all_ = zip(*compared, strict=True)
        left, right, error = map(np.concatenate, all_)
        size = np.abs(right)
        # Sharp ones are judged by the bound, which is at least their own rounding.
        own = _rounds(node) & (size > blunt) & (error <= limit * unit * size)
        if (at := np.flatnonzero(own)).size:
            at = at[(error[at] / size[at]).argmax()]
            ratio = float(error[at] / size[at]) / unit
            ratios.append((ratio, int(left[at]), float(right[at])))
        looked, far = np.flatnonzero(~own), left[:0]
        if looked.size:
            there = np.zeros(left.size)
            kinds = there, *self._ranked(got.reshape(-1)[left], size, error)
            far = np.array([kind.argmax() for kind in kinds[1:]])
            asked = left[looked], size[looked] > blunt, error[looked], limit
            there[looked] = self._ratios(node, *asked)
            off = np.flatnonzero(there > limit)
            some = off if off.size else np.array([there.argmax(), *far])
            by = (some[np.argsort(-kind[some])[:FARTHEST]] for kind in kinds)
            first = np.concatenate([*by, off])
            far = left[first]
            ratios.append((float(there.max()), int(far[0]), float(right[first[0]])))
        ratio, place, value = max(ratios)
        doubtful = vague or not ratio <= limit
        return doubtful, ratio, far if doubtful else np.array([place]), value

    def _outside(
        self, name: str, node: Node, got: Array, parts: Sequence[Compared], blunt: float
    ) -> list[Compared]:
        """The elements outside the box around wrong ones, and some of these.

        The elements inside tell no more where that box is known, so few are sampled:
        of each part ends, the farthest and some between.
        """
        few = list[Compared]()
        for _, left, right, error in parts:
            far = (k.argmax() for k in self._ranked(got[left], np.abs(right), error))
            step = left.size * len(parts) // FEW | 1
            some = [*far, *range(0, left.size, step), -1] if left.size else []
            few.append(([], left[some], right[some], error[some]))
        left, right, error = map(np.concatenate, [*zip(*few, strict=True)][1:])
        ratios = self._ratios(node, left, np.abs(right) > blunt, error, self.room)
        off = ratios > self.room
        kept: list[Compared] = [([], left[off], right[off], error[off])]
        outside = np.ones(node.size, bool)
        outside.reshape(node.shape)[box_of(left[off], node.shape)] = False
        for _, left, right, error in parts:
            there = outside[left]
            if not there.all():
                self.skipped.add(name)
            kept.append(([], left[there], right[there], error[there]))
        return kept

    def _ranked(self, got: Array, size: Error, error: Error) -> tuple[Error, Error]:
        """Relative errors and errors, 0 of infinities of values beyond the range."""
        due = np.isinf(got) & (size >= self.arithmetic.stored.beyond)
        rest = np.where(due, 0.0, error)
        return rest / size, rest

    def _ratios(
        self, node: Node, places: Places, sharp: Array, error: Array, limit: float
    ) -> Array:
        """The errors of elements, in units of their least radii."""
        least = np.zeros(places.size)
        together = max(TOGETHER, node.size // 2) // min(self.operations, NODES)
        before = 0, 0
        for look in LOOKS:
            if before >= (DEPTH, self.longest):
                break  # there is no longer sum
            before, more = look, np.flatnonzero(~(error <= limit * least))
            for some in np.array_split(more, more.size // together + 1):
                asked = node, places[some], sharp[some]
                least[some] = self._least.radii(*asked, *look) if some.size else 0.0
        ratios = np.where(error == 0, 0.0, error / least)
        return np.where(np.isnan(ratios), np.inf, ratios)

    def _beyond_own_rounding(self, got: Array, node: Node, first: int) -> Compared:
        """Compare elements from a flat position on with their own last rounding.

        They may be too far off if it is `SURE` times that by which the spread is at
        least as large. Intermediate arrays stay in the cache, by blocks.
        """
        unit, value = self.arithmetic.step.roundoff, node.value
        sure = SURE * self.room * unit if _rounds(node) else 0.0
        stored, step = self.arithmetic.stored, self.arithmetic.step
        once = stored.roundoff if stored is not step else 0.0
        most, place, left = 0.0, 0, [np.zeros(0, np.intp)]
        errors = np.empty_like(value, shape=value.size)
        sides = got.reshape(-1), value.reshape(-1), errors
        block = value.size if isinstance(value, graph.Foreign) else BLOCK
        space = np.empty_like(value, shape=min(block, value.size))
        for start in range(0, value.size, block):
            given, right, error = (side[start : start + block] for side in sides)
            size = space[: right.size]
            np.copyto(error, given)  # a third faster than to subtract of two dtypes
            error -= right
            np.abs(error, out=error)
            np.abs(right, out=size)
            if once:
                error -= np.minimum(once * size, error)
            size *= most  # fewer passes than a division and a maximum
            if (more := np.flatnonzero(~(error <= size))).size:  # true for nan
                ratio = error[more] / np.abs(right[more])
                near = ratio <= sure
                left.append(more[~near] + start)
                if near.any():
                    at = np.where(near, ratio, 0.0).argmax()
                    most, place = float(ratio[at]), start + int(more[at])
        far = np.concatenate(left)
        largest = most / unit, first + place, float(sides[1][place])
        return [largest], far + first, sides[1][far], errors[far]

    def _sampled_of(self, nodes: Mapping[str, Node]) -> dict[str, tuple[float, float]]:
        """The vacuous shares of samples by their bounds, and least sharp magnitudes.

        From that magnitude on the bound leaves at least half of an element's digits.
        """
        sample, limit = Sample(self._axes), self.limit
        asked = {n: sample.of(y) for n, y in nodes.items()}, self.arithmetic, limit
        bounds = Radii(*asked, self.longest, rules=sample.rules()).bounds
        half = limit / self.arithmetic.step.roundoff**0.5
        blunt = {n: half * float(b.radius.max()) for n, b in bounds.items()}
        return {n: (share_of_silent(b, limit), blunt[n]) for n, b in bounds.items()}


def _in_turn(nodes: dict[str, Node]) -> Iterator[tuple[int, Places, dict[str, Node]]]:
    """Slices of the tensors along an axis, one after another; or all of them whole.

    Values may be far larger than all tensors, as scores and windows are. Where an axis
    of images, heads or channels goes through the whole graph, a slice of the tensors
    needs a slice of each value alone.
    """
    most = max((node.size for node in nodes.values()), default=0)
    order = graph.topological_order(nodes.values())
    far = most > 1 and any(n.size > max(FAR_LARGER * most, FAR) for n in order)
    # Each part would search all scattered values for those that fall into it.
    scatters = (n for n in order if operation(n) == "scatter_add")
    if far and all("batch" in node.attributes for node in scatters):
        for first in sorted(nodes.values(), key=lambda node: -node.size):
            for axis in [i for i, n in enumerate(first.shape) if n > 1]:
                ahead, count = first.shape[: axis + 1], first.shape[axis]
                alike = {n: x for n, x in nodes.items() if x.shape[: axis + 1] == ahead}
                turns = np.array_split(np.arange(count), min(count, TURNS))
                work = _work(_parts(alike, axis, turns[0])) * count
                if alike and work <= 2 * _work(alike) * turns[0].size:
                    for places in turns:
                        yield axis, places, _parts(alike, axis, places)
                    nodes = {n: x for n, x in nodes.items() if n not in alike}
                    break
    yield 0, np.zeros(0, np.intp), nodes


def _parts(nodes: dict[str, Node], axis: int, places: Places) -> dict[str, Node]:
    """The elements of tensors at some positions of an axis."""
    parts, ahead = Parts(), (*(None,) * axis, places)
    return {
        name: parts.part(node, (*ahead, *(None,) * (node.ndim - axis - 1)))
        for name, node in nodes.items()
    }


def _work(nodes: dict[str, Node]) -> int:
    return sum(node.size for node in graph.topological_order(nodes.values()))


def box_of(flat: Places, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The slices around elements at flat positions."""
    axes = zip(np.unravel_index(flat, shape or (1,)), shape or (1,), strict=True)
    ends = ((p.min(initial=n), p.max(initial=-1)) for p, n in axes)
    return tuple(slice(first, last + 1) for first, last in ends)


def passing(order: Sequence[Node]) -> Callable[[Node], bool]:
    """A test for nodes whose values are dropped: a few elements are cheap to redo."""
    products = (node.inputs for node in order if operation(node) == "matmul")
    held = set[Node]().union(*products)
    few = max((HELD, *(SHARE * node.size for node in order)))
    return lambda n: n.size >= few and n not in held and soon_computed(n)


def _rounds(node: Node) -> bool:
    """Whether each element has a rounding of its own, be it moved afterwards."""
    while len(node.inputs) == 1 and operation(node) in (*MOVED, "gather"):
        (node,) = node.inputs
    name = operation(node)
    also = name in SUMMED or (name in SUMS and terms(node) > 1)
    return not node.precision and (also or (name in RULES and RULES[name].rounds))


class Least:
    """The least radii of elements at flat positions.

    Of a long sum, `most` terms are added up: the magnitude of all is no smaller, but
    takes a pass over the operand. Roundings of at most `depth` nodes are followed one
    after another.
    """

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.unit, self.wide = arithmetic.step.roundoff, arithmetic.has_wide_sums
        self._product = functools.cache(_of_product)
        self._counts = functools.cache(terms_of_scatter)

    def radii(
        self,
        node: Node,
        places: Places,
        sharp: Any = False,
        depth: int = DEPTH,
        most: int = sys.maxsize,
    ) -> Error:
        """A lower bound of the radius at flat positions of a node's value.

        It is one of the spread, and where an element is `sharp` one of the bound.
        """
        self._elements, self._parts = Elements(), Held(most)
        order = graph.topological_order([node])
        self._users = users = Counter(n for other in order for n in other.inputs)
        users[node] = 1
        # Positions that elements come from, their slopes, and how many nodes are left.
        ways = defaultdict[Node, list[tuple[Places, Any, int]]](list)
        ways[node], seen = [(places, np.ones(places.size), depth)], Counter([node])
        total, squares = np.zeros(places.size), np.zeros(places.size)
        for other in reversed(order):
            found = ways.pop(other, [])
            found = _elements(found) if len(found) > 1 else found
            if seen[other] != users[other] or not other.inputs or len(found) > APART:
                continue  # there may be other ways
            left = min((way[2] for way in found), default=0)
            after = left - (operation(other) not in MOVED | INDEXED)
            sources: list[Source] = []
            for here, slope, _ in found:
                reached = np.abs(slope) * self._own(other, here)
                total += reached
                squares += reached * reached
                sources = [*self._elements.sources(other, here)] if left else []
                for source, behind, each in sources:
                    ways[source].append((behind, each * slope, after))
            seen.update(source for source, *_ in sources)
        return np.asarray(self.unit * np.where(sharp, total, SURE * np.sqrt(squares)))

    def _own(self, node: Node, places: Places) -> Error:
        """The magnitude of a node's own rounding, in unit roundoffs; 0 if unknown.

        It is not known in a precision of its own. A sum of products also has the
        roundings of its products.
        """
        name = operation(node)
        wide = self.wide and name in (*SUMS, *SUMMED, "scatter_add")
        if wide or node.precision:
            return np.zeros(places.size)
        if name == "matmul" and self._parts.most <= FEW:
            return self._product(node).reshape(-1)[places].astype(np.float64)
        several: Any = name in SUMMED or (name in SUMS and terms(node) > 1)
        if name == "scatter_add":
            several = np.broadcast_to(self._counts(node) > 1, node.shape)
            several = several.reshape(-1)[places]
        if name == "cumulative_sum":  # the first is a copy
            (source,) = self._elements.operands(node, places)
            several = self._elements.at(node, places) != source
        if np.any(several):
            wanted = [_sizes(node)]
            wanted += self._squares(node) if self._parts.most > FEW else []
            held = {*(ends := [self._parts.at(n, places) for n in wanted])}
            with graph.computing(graph.computed):
                graph.forward_dropping(ends, lambda n: n not in held and n.inputs != ())
            total, *squares = (end.value for end in ends)
            total = functools.reduce(np.hypot, map(np.sqrt, squares), total)
            return np.where(np.isfinite(total) & several, total, 0.0)
        if name and RULES[name].rounds:
            size = np.abs(self._elements.at(node, places))
            kept = [size == 1] if exact_at_one(node) else []  # and x + 0, x * 1
            kept += [size == np.abs(a) for a in self._elements.operands(node, places)]
            return np.where(functools.reduce(operator.or_, kept), 0.0, size)
        return np.zeros(places.size)

    def _squares(self, node: Node) -> list[Node]:
        """The sum of squares of terms' roundings, if these come from one product."""
        source = node.inputs[0]
        if operation(node) == "matmul" or self._users[source] != 1:
            return []  # it might cancel
        if operation(source) == "matmul":
            behind = [graph.square(_sizes(source))]
        else:
            behind = self._squares(source) if operation(source) in MOVED else []
        return [Node(node.primitive, (n,), node.attributes) for n in behind]


def _sizes(node: Node) -> Node:
    return Node(node.primitive, tuple(map(abs, node.inputs)), node.attributes)


def _elements(ways: list[tuple[Places, Any, int]]) -> list[tuple[Places, Any, int]]:
    """Ways to the same element in one, whose slope is the sum of theirs."""
    found: list[tuple[Places, Any, int]] = []
    for here, slope, depth in ways:
        for i, (there, before, least) in enumerate(found):
            same = here == there
            found[i] = there, before + slope * same, min(depth, least)
            slope = slope * ~same
        if np.any(slope):
            found.append((here, slope, depth))
    return found


def _of_product(node: Node) -> Array:
    """Lower bounds of |a| @ |b| for a matrix product, in float32; 0 on overflow."""
    a, b = (source.value for source in node.inputs)
    some = slice(None, None, -(-a.shape[-1] // FEW) or 1)  # also a bound; all are slow
    a, b = (x.astype(np.float32) for x in (a[..., some], b[..., some, :]))
    size: Array = np.abs(a, out=a) @ np.abs(b, out=b)
    # A sum of k products is off by k + 2 roundings; twice that is for their products.
    size *= max(0.0, 1 - (a.shape[-1] + 3) * float(np.finfo(np.float32).eps))
    size[~np.isfinite(size)] = 0.0
    return size


class Sample(Parts):
    """Parts at some places of each axis; of a sum some terms stand for all of them."""

    def __init__(self, axes: int) -> None:
        """Choose how many places each axis has, for tensors of at most `axes` axes."""
        super().__init__(round(PLACES ** (1 / max(axes, 1))))
        self._counts: dict[Node, float] = {}

    def of(self, node: Node) -> Node:
        """The sample of a node."""
        return self.part(node, tuple(map(self.terms, node.shape)))

    def summed(
        self, node: Node, box: Box, inputs: tuple[Node, ...], attributes: Any
    ) -> Node:
        """The part of a sum or matrix product, with the value that all terms give."""
        part = Node(node.primitive, inputs, attributes, cut_of(node.value, box))
        self._counts[part] = terms(node) / max(terms(part), 1)
        return part

    def rules(self) -> Table:
        """Rules for the running errors of sums, estimated from the terms taken."""

        def error(name: str, at: At) -> Error:
            once = at.v if at.sums != 1 else 0.0  # the rounding of the result
            return once + self._counts[at.node] * (RULES[name].error(at) - once)

        names = ("sum", "sum_to", "matmul")
        return {name: functools.partial(error, name) for name in names}
