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

Left to the judgement: second orders, 16 bits, ops with choices, indices or functions
that have no rule here, and tensors of which a quarter might be vacuous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
)
from gradwatch.harness.judging.acceptance.pairwise import CAREFUL
from gradwatch.harness.judging.comparison import SAYS_NOTHING, sentence
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS, plain
from gradwatch.harness.judging.reference import nodes_of, require_subnormals
from gradwatch.harness.judging.rounding.errors import (
    Errors,
    limit_for,
    longest_reduction,
)
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem
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
#: Elements that are compared at a time: a few arrays of them fit into a core's cache.
BLOCK = 1 << 14
#: Elements below which a value is held.
SMALL = 1 << 12
#: The longest way back from a value that is not held to those that are.
STEPS = 6
_LEAST = 5e-324  # instead of a division by zero


def accepted(
    problem: Problem,
    got: Mapping[str, Array | None],
    dtypes: Mapping[str, str],
    compute: str | None = None,
) -> tuple[Judgement, ...] | None:
    """Judgements of right tensors; None where they have to be judged in full.

    Args:
        problem: The op's inputs, cotangents and attributes.
        got: The tensors by name.
        dtypes: Names of the dtypes that they have where they come from.
        compute: The precision inside; None is that of the tensors.
    """
    sizes = (array.size for array in problem.inputs.values())
    if max(sizes, default=0) < LARGE or problem.dtype not in ("float64", "float32"):
        return None
    if compute not in (None, problem.dtype) or problem.order != "vjp":
        return None
    if any(a is None or dtypes.get(n) != problem.dtype for n, a in got.items()):
        return None
    require_subnormals()
    _use_pages_again(sum(array.size for array in problem.inputs.values()))
    look = _Look(problem)
    try:
        return look.judgements({n: a for n, a in got.items() if a is not None})
    except Unknown:
        return None


def _use_pages_again(elements: int) -> None:
    """Have the allocator keep, of what is freed, as much as a judgement holds.

    glibc returns the end of its heap to the system where more than twice the largest
    block that was ever freed lies unused there (mallopt(3), M_MMAP_THRESHOLD). A
    judgement holds about six arrays, so each would ask for all its pages again, which
    takes up to half as long as the judgement. This block is never touched.
    """
    np.empty(3 * elements)


class _Look:
    """A problem's graph in float64, with the extent of every node."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.dtype = problem, problem.dtype
        self.precision = PRECISIONS[problem.dtype]
        self.arithmetic = plain(self.precision)
        self._extents: dict[Node, Extent] = {}
        self.unknown = False
        longest = sum(array.size for array in problem.inputs.values())
        #: More than what E becomes the deviation by: the limit is not known yet.
        self.reach = limit_for(longest) * self.precision.roundoff
        self.tiny = self.precision.smallest / self.precision.roundoff

    def grid(self) -> Grid:
        """A new grid; not kept here, as a circle would hold all values until later."""
        axes = max(array.ndim for array in self.problem.inputs.values())
        return Grid(axes, self.extent, self.reach, self.tiny)

    def judgements(self, got: Mapping[str, Array]) -> tuple[Judgement, ...]:
        """The judgements.

        Raises:
            Unknown: some tensor has to be judged in full.
        """
        with np.errstate(all="ignore"), graph.computing(self.compute):
            nodes = nodes_of(self.problem, np.dtype(np.float64))
            order = graph.topological_order(nodes.values())
            if {n.primitive.name for n in order if n.primitive} - RULES.keys():
                raise Unknown
            limit = limit_for(longest_reduction(order))
            judged = [nodes[name] for name in got]
            graph.forward_dropping(judged, _passing(order, judged))
            self._require_known()
            share = HALF if self.dtype == "float64" else 1.0
            errors = Errors(self.arithmetic, limit * share, {}, {}, {})
            grid = self.grid()
            return tuple(
                self._judged(name, nodes[name], array, errors, limit, grid)
                for name, array in got.items()
            )

    def _require_known(self) -> None:
        if self.unknown:
            raise Unknown

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
        if name not in RULES:
            self.unknown = True
        if not self.unknown:
            self._note(name, node, value)
        return value

    def _note(self, name: str, node: Node, value: Array) -> None:
        source = [self.extent(n) for n in node.inputs]
        most, least = source[0].most, source[0].least
        if name not in MOVED:
            most, least = magnitudes(value)
        error = RULES[name](View(node, value, source, most, self.reach, self.tiny))
        self._extents[node] = Extent(most, error, least)
        top = self.precision.largest / 4
        if not (most < top and error < top):  # true for nan
            self.unknown = True

    def _share_of_silent(self, node: Node, reach: float, grid: Grid) -> float:
        """Of the elements on a grid, the share that may be vacuous.

        E of the whole node may show already that few are; else each has its own.
        """
        sizes = np.abs(grid.values(node))
        silent = _share(reach * self.extent(node).error > SAYS_NOTHING * sizes)
        if silent > UNKNOWN:
            error = grid.at(node).error
            silent = _share(~(MARGIN * reach * error <= SAYS_NOTHING * sizes))
        return silent

    def extent(self, node: Node) -> Extent:
        """The largest magnitude and E of a node."""
        if node not in self._extents:  # a leaf
            most, least = magnitudes(node.value)
            exact = node.size > 1 or bool(
                (self.precision.round(node.value) == node.value).all()
            )
            self._extents[node] = Extent(most, 0.0 if exact else most, least)
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
        silent = self._share_of_silent(node, limit * roundoff, grid)
        if silent > UNKNOWN:
            raise Unknown
        blunt = limit * roundoff**0.5 * self.extent(node).error
        ratios, left, error = _beyond_own_rounding(got, value, errors, blunt)
        if left.size:
            sharp = np.abs(value.reshape(-1)[left]) > blunt
            there = ratios_of_terms(node, left, error, errors, sharp)
            if not (there <= errors.limit).all():
                raise Unknown
            at = int(there.argmax())
            ratios.append((float(there[at]), int(left[at])))
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
            compute=self.dtype,
        )
        return judgement.changed(message=sentence(judgement, self.dtype))


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
    got: Array, value: Array, errors: Errors, blunt: float
) -> tuple[list[tuple[float, int]], Places, Array]:
    """Elements that are off by more than their own last rounding explains.

    The bound judges where it leaves half of the digits, and is at least that rounding;
    for what may be smaller than `blunt`, the spread does. Some elements at a time, so
    that what is computed on the way stays in the cache.

    Returns:
        The largest ratio of each block to that rounding, and its flat position; the
        positions of the elements that are off by more; how far they are off.
    """
    unit = errors.arithmetic.roundoff
    sure, all_ = SURE * errors.limit * unit, errors.limit * unit
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
