"""Large tensors that are right, seen at a fraction of a judgement's cost.

A judgement carries an error bound beside every element of every value, in a type wider
than the one under test. Of a large right tensor less is enough. The radius of an
element is at least its own last rounding and those of the terms behind it
(least_spread.py); an error that the limit times this explains is explained by the
radius. So one pass over each value does. That the tensor is not vacuous, as it may
overflow or a divisor vanish, follows from the bound of some thousand of its elements
(parts.py). What is not accepted here is judged as ever, and nothing is rejected here.

For float64 the reference is computed in float64, too, its sums in a wider type; beside
it a tensor is allowed half of the limit, as it is an honest implementation itself.

Tensors of 16 bits are accepted as computed in float32 and rounded once.

Left to the judgement: choices among equal numbers, and tensors of which a quarter might
be vacuous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.acceptance.least_spread import (
    MOVED,
    SURE,
    Places,
    ratios_of_terms,
    rounds,
)
from gradwatch.harness.judging.acceptance.parts import Sample, deep_calls
from gradwatch.harness.judging.comparison import informative, sentence
from gradwatch.harness.judging.excuses.overflow import risks
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import Arithmetic, arithmetics
from gradwatch.harness.judging.reference import Build, Truth, require_subnormals
from gradwatch.harness.judging.rounding.analysis import running_errors
from gradwatch.harness.judging.rounding.errors import (
    Errors,
    limit_for,
    longest_reduction,
)
from gradwatch.harness.judging.rounding.sums import summed_axes
from gradwatch.harness.judging.rounding.thresholds import MOST
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]

#: Elements of the largest input from which this is tried: below, calls of Python
#: functions take longer than the passes over the elements.
LARGE = 1 << 14
#: Share of a sample that may be vacuous.
UNKNOWN = MOST / 2
#: Terms of a matrix product in float64 that are added up one by one.
TOGETHER = 32
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
        operations: What they are computed by.
    """

    judgements: dict[str, Judgement]
    far: dict[str, Places]
    longest: int
    size: int
    operations: int


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
    require_subnormals()
    with graph.ties("first"):
        nodes = build(np.dtype(np.float64))
    held = {
        name: array
        for name, array in got.items()
        if array is not None
        and dtypes.get(name) == dtype
        and nodes[name].shape == array.shape
    }
    look = _Look(nodes, arithmetics(dtype, compute)[0])
    judgements = look.judgements(held) if held else {}
    size = sum(n.size for n in look.order)
    return Looked(judgements, look.far, look.longest, size, len(look.order))


class _Look:
    """A graph in float64."""

    def __init__(self, nodes: Mapping[str, Node], arithmetic: Arithmetic) -> None:
        self.nodes, self.arithmetic = nodes, arithmetic
        self.dtype = arithmetic.stored.name
        self.order = graph.topological_order(nodes.values())
        leaves = [node for node in self.order if node.primitive is None]
        self.axes = max(node.ndim for node in leaves)
        self.tied = False
        self.far: dict[str, Places] = {}
        self.longest = longest_reduction(self.order)
        self.limit = limit_for(self.longest)

    def judgements(self, got: Mapping[str, Array]) -> dict[str, Judgement]:
        """The judgements of right tensors; `far` holds what the others are."""
        with np.errstate(all="ignore"), graph.computing(self.compute), deep_calls():
            judged = [self.nodes[name] for name in got]
            graph.forward_dropping(judged, _passing(self.order, judged))
            sample, found = Sample(self.axes), {}
            for name, array in got.items():
                if judgement := self._judged(name, array, sample):
                    found[name] = judgement
                else:
                    right = self.nodes[name].value
                    self.far.setdefault(name, _farthest(array, right))
            return found

    def compute(
        self, node: Node, arrays: Sequence[Array | None], spare: Array | None = None
    ) -> Array:
        """A node's value; that of a choice among equal numbers is noted."""
        assert node.primitive is not None
        name = node.primitive.name
        if name in _TIED and not self.tied:
            self.tied = _TIED[name](node, *arrays)
        if self.dtype == "float64" and name in _CAREFUL:
            return _CAREFUL[name](node, *arrays)
        if spare is None:
            return graph.computed(node, arrays)
        return graph.computed(node, arrays, spare)

    def _judged(self, name: str, got: Array, sample: Sample) -> Judgement | None:
        node, value = self.nodes[name], self.nodes[name].value
        if value.dtype.kind != "f" or not value.size:
            return None
        if node.primitive is None and not np.array_equal(got, value):
            return None  # a zero, or an input itself
        honest = 2 if self.dtype == "float64" else 1  # the reference is one of two
        errors = Errors(self.arithmetic, self.limit / honest, {}, {}, {})
        silent, blunt = self._sampled(node, sample)
        ratios, left, error = _beyond_own_rounding(got, node, errors, blunt)
        if left.size:
            sharp = np.abs(value.reshape(-1)[left]) > blunt
            there = ratios_of_terms(node, left, error, errors, sharp)
            if not (there <= errors.limit).all():
                there = np.where(np.isnan(there), np.inf, there)
                first = left[np.argsort(-there, kind="stable")[:FARTHEST]]
                self.far[name] = np.append(first, _farthest(got, value))
                return None
            at = int(there.argmax())
            ratios.append((float(there[at]), int(left[at])))
        if self.tied or silent > UNKNOWN:
            return None
        ratio, place = max(ratios)
        worst = np.unravel_index(place, value.shape)
        off = abs(float(got[worst]) - float(value[worst]))
        judgement = Judgement(
            name,
            "agree",
            ratio=ratio,
            limit=self.limit,
            worst_index=tuple(int(i) for i in worst),
            got=float(got[worst]),
            expected=float(value[worst]),
            radius=off / ratio if ratio else 0.0,
            radius_kind="least",
            compute=self.arithmetic.name,
        )
        return judgement.changed(message=sentence(judgement, self.dtype))

    def _sampled(self, node: Node, sample: Sample) -> tuple[float, float]:
        """By the bound of a sample: the share of it that says nothing; what is sharp.

        That is what is so large that the bound leaves half of its digits.
        """
        few, unit = sample.of(node), self.arithmetic.roundoff
        order = graph.topological_order([few])
        errors = running_errors(order, self.arithmetic, self.limit, sample.rules())
        radius = unit * errors.errors[few]
        if (risk := risks(order, errors).get(few)) is not None:
            radius = np.where(risk.infinite | risk.undefined, np.inf, radius)
        zero = 32 * self.arithmetic.stored.floor  # underflow alone: zero is as good
        truth = Truth("", few.value, radius, np.zeros(few.shape, bool), zero)
        silent = ~informative(truth, self.limit)
        return float(silent.mean()), self.limit * float(radius.max()) / unit**0.5


def _tied(node: Node, x: Array) -> bool:
    axis = node.attributes["axis"]
    chosen = np.count_nonzero(x == np.max(x, axis=axis, keepdims=True))
    return bool(chosen != x.size // x.shape[axis])


#: Whether a choice is among equal numbers: the gradient is a set there.
_TIED: dict[str, Callable[..., bool]] = {
    "share": lambda node, a, b: bool((a == b).any()),
    "sign": lambda node, a: bool((a == 0).any()),
    "pick": _tied,
}


def _in_blocks(node: Node, a: Array, b: Array) -> Array:
    """A matrix product, some terms at a time."""
    total = a[..., :TOGETHER] @ b[..., :TOGETHER, :]
    for start in range(TOGETHER, a.shape[-1], TOGETHER):
        part = slice(start, start + TOGETHER)
        total += a[..., part] @ b[..., part, :]
    return np.asarray(total)


def _in_extended(node: Node, x: Array) -> Array:
    shape = node.attributes.get("shape")
    kept = shape is not None or bool(node.attributes["keepdims"])
    total = np.sum(x, summed_axes(node, x.shape), np.longdouble, keepdims=kept)
    found: Array = np.asarray(total).astype(np.float64)
    return found if shape is None else found.reshape(shape)


#: Added up one by one, equal terms round the same way each time, in NumPy as in a
#: kernel that is judged. A reference in float64 must not share that loss.
_CAREFUL: dict[str, Callable[..., Array]] = {
    "sum": _in_extended,
    "sum_to": _in_extended,
    "matmul": _in_blocks,
}


def _farthest(got: Array, value: Array) -> Places:
    """Flat positions of the largest errors; of nan before all others."""
    with np.errstate(all="ignore"):
        error = np.abs(got.reshape(-1) - value.reshape(-1)).astype(np.float64)
        error[(got == value).reshape(-1)] = 0.0
    error[np.isnan(error)] = np.inf
    few = min(FARTHEST // 2, error.size)
    places = np.argpartition(error, error.size - few)[error.size - few :]
    return np.asarray(places[error[places] > 0])


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

    Of what is larger than `blunt` the bound is the judge, and is at least that
    rounding; elsewhere it is the spread, at least `SURE` of it. Some elements at a
    time, so that what is computed on the way stays in the cache.

    Returns:
        The largest ratio of each block to that rounding, and its flat position; the
        positions of the elements that are off by more; how far they are off.
    """
    unit, value = errors.arithmetic.roundoff, node.value
    all_ = errors.limit * unit if rounds(node) else 0.0
    sure = SURE * all_
    stored = errors.arithmetic.stored
    once = stored.roundoff if stored is not errors.arithmetic.step else 0.0
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
            sharp = np.abs(right[more]) > blunt
            more = more[~(sharp & (ratio[more] <= all_))]
            left.append(more + start)
            off.append(error[more])
            ratio[more] = 0.0
            worst = int(ratio.argmax())
        ratios.append((float(ratio[worst]) / unit, start + worst))
    none = np.zeros(0, np.intp)
    return ratios, np.concatenate([none, *left]), np.concatenate([none * 0.0, *off])
