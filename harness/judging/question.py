"""What tensors are judged against: in full, and of very large ones in part."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.parts import Parts, Places, deep_calls
from gradwatch.harness.judging.precisions import PRECISIONS, Array, arithmetics
from gradwatch.harness.judging.reference import (
    Build,
    Reference,
    nodes_of,
    reference_of_graph,
    require_subnormals,
    results_of,
    wider,
)
from gradwatch.harness.judging.rounding.errors import limit_for, longest_reduction
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem

#: Elements of a tensor below which no graph is taken to be very large.
LARGE = 1 << 14
#: Elements of all values of a graph up to which tensors are judged in full, and from
#: which they never are: that takes about a hundred bytes an element.
FULL, MOST = 1 << 21, 1 << 24
#: To judge an operation takes as long as so many elements of its result: .5 ms, .5 us
#: (`cpu-2core`). Each tensor has a part, and each part nearly all operations.
OPERATION = 1000
#: Elements farthest off, and elements of a sample, that are judged where not all are.
FARTHEST = 256


@dataclass(frozen=True)
class Question:
    """The graph of the right tensors, which is evaluated as far as it is needed.

    Attributes:
        build: Gives the nodes by name, not evaluated, for leaves of a type.
        dtype: The precision under test.
        compute: The precision of intermediate values; None is what frameworks do.
        outputs: Of a second order, the function's outputs, likewise.
        unreached: Gradients that no path leads to; building fills it.
    """

    build: Build
    dtype: str
    compute: str | None = None
    outputs: Build | None = None
    unreached: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, problem: Problem, compute: str | None = None) -> Question:
        """Of an op's gradients, outputs and state."""
        second = getattr(problem, "order", "vjp") != "vjp"
        outputs = functools.partial(results_of, problem) if second else None
        arithmetics(problem.dtype, compute)
        build = functools.partial(nodes_of, problem)
        return cls(build, problem.dtype, compute, outputs)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """Of the tensors."""
        if "right" in self.__dict__:
            return tuple(self.right.graphs["first"])
        with graph.ties("first"):
            return tuple(self.build(np.dtype(np.float64)))

    @functools.cached_property
    def right(self) -> Reference:
        """The right tensors, with all radii."""
        wide, outputs = wider(PRECISIONS[self.dtype]), self.outputs
        return reference_of_graph(
            lambda: self.build(wide),
            self.dtype,
            self.compute,
            None if outputs is None else lambda: outputs(wide),
        )

    @property
    def known(self) -> Reference | None:
        """The right tensors, if they were needed in full."""
        return self.__dict__.get("right")

    def judge(
        self, got: Mapping[str, Array | None], dtypes: Mapping[str, str]
    ) -> tuple[Judgement, ...]:
        """The judgements, in the order of the tensors.

        Args:
            got: The tensors by name.
            dtypes: Names of the dtypes that they have where they come from.

        Raises:
            FloatingPointError: subnormal numbers are flushed to zero in this thread.
        """
        require_subnormals()
        large = any(a is not None and a.size >= LARGE for a in got.values())
        found = self._in_part(got, dtypes) if large and self.known is None else {}
        left = {name: array for name, array in got.items() if name not in found}
        if left:
            judged = judge_tensors(self.right, left, dtypes, dtype=self.dtype)
            found |= {j.tensor: j for j in judged}
        return tuple(found[name] for name in got)

    def _in_part(
        self, got: Mapping[str, Array | None], dtypes: Mapping[str, str]
    ) -> dict[str, Judgement]:
        """Judgements by the elements farthest off and a sample; none of small graphs.

        What is farthest off is found in one evaluation in float64.
        """
        seed = int(np.random.default_rng().integers(1 << 31))
        boxes, longest = self._boxes(got, seed)
        if not boxes:
            return {}
        wide = wider(PRECISIONS[self.dtype])

        def build() -> dict[str, graph.Node]:
            nodes, parts = self.build(wide), Parts()
            return {n: parts.part(nodes[n], tuple(box)) for n, box in boxes.items()}

        with deep_calls():
            right = reference_of_graph(build, self.dtype, self.compute)
        right.longest, right.limit = longest, limit_for(longest)
        whole = {n: np.asarray(got[n]) for n in boxes}
        some = {n: np.asarray(whole[n][np.ix_(*box)]) for n, box in boxes.items()}
        judged = judge_tensors(right, some, dtypes, dtype=self.dtype)
        return {
            j.tensor: _in_place(j, boxes[j.tensor], whole[j.tensor].size, seed)
            for j in judged
        }

    def _boxes(
        self, got: Mapping[str, Array | None], seed: int
    ) -> tuple[dict[str, list[Places]], int]:
        """Places of each axis to look at, and the longest reduction of the graph."""
        with graph.ties("first"):
            nodes = self.build(np.dtype(np.float64))
        order = graph.topological_order(nodes.values())
        parts = OPERATION * len(order) * len(got)
        if sum(n.size for n in order) <= min(MOST, max(FULL, parts)):
            return {}, 0
        held = {n: a for n, a in got.items() if a is not None}
        held = {n: a for n, a in held.items() if a.shape == nodes[n].shape}
        longest = longest_reduction(order)
        values = _values([nodes[n] for n in held])
        del nodes, order  # and with them the leaves in float64
        rng = np.random.default_rng(seed)
        pairs = zip(held.items(), values, strict=True)
        return {name: _looked_at(a, value, rng) for (name, a), value in pairs}, longest


def _values(nodes: Sequence[graph.Node]) -> list[Array]:
    """The values of nodes; those on the way are dropped after their last use."""
    kept = {*nodes}
    graph.forward_dropping(nodes, lambda n: n.inputs != () and n not in kept)
    return [node.value for node in nodes]


def _looked_at(got: Array, value: Array, rng: np.random.Generator) -> list[Places]:
    """Places of each axis: of the elements farthest off, and as many at random.

    Farthest off by itself, beside the right value, and beside the slices that they are
    in: a row of small numbers is not hidden by the errors of large ones.
    """
    if not got.size:
        return [np.arange(n) for n in got.shape]
    axes = range(got.ndim) if got.ndim > 1 else ()
    few = round(FARTHEST ** (1 / max(got.ndim, 1)))
    few = min(max(1, few // (2 + len(axes))), got.size)
    with np.errstate(all="ignore"):
        error = np.abs(got - value, dtype=np.float64)
        error[np.isnan(error) & ~(np.isnan(got) & np.isnan(value))] = np.inf
        error[got == value] = 0.0  # infinities

        def sizes() -> Iterator[Array]:
            yield np.ones(())
            yield np.abs(value)
            for axis in axes:
                others = tuple(i for i in axes if i != axis)
                yield np.sqrt(np.mean(value * value, axis=others, keepdims=True))

        far = []
        for size in sizes():
            score = np.nan_to_num(error / size, copy=False, nan=0.0)
            far.append(np.argpartition(score, -few, axis=None)[score.size - few :])
    places = np.unravel_index(np.concatenate(far), got.shape) if got.ndim else ()
    return [
        np.union1d(p, rng.choice(n, min(n, p.size), replace=False))
        for p, n in zip(places, got.shape, strict=True)
    ]


def _in_place(j: Judgement, box: Sequence[Places], size: int, seed: int) -> Judgement:
    """The judgement of some elements, with the place that its worst one has in all."""
    there = tuple(int(p[i]) for p, i in zip(box, j.worst_index, strict=False))
    old, new = (f"{j.tensor}[{', '.join(map(str, i))}]" for i in (j.worst_index, there))
    count = int(np.prod([p.size for p in box]))
    return j.changed(
        worst_index=there,
        message=f"{j.message.replace(old, new, 1)}; of {size} elements, "
        f"{count} were judged in full: those farthest off and a sample (seed {seed})",
    )
