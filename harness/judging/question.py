"""Judges tensors against a formula: cheaply where that is enough, else in full."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from gradwatch.harness.judging.acceptance.large import FARTHEST, LARGE, Look, box_of
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import Array
from gradwatch.harness.judging.reference import Asked, Reference, require_subnormals
from gradwatch.harness.judging.rounding.thresholds import SMALL
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import graph
from gradwatch.impls.graph.parts import Box, Parts, deep_calls

#: Elements of all values of a graph up to which tensors are judged in full, and from
#: which they never are: that takes about a hundred bytes an element.
FULL, MOST = 1 << 21, 1 << 24
#: To judge an operation takes as long as so many elements of its result: .5 ms, .5 us
#: (`cpu-2core`). Each tensor has a part, and each part nearly all operations.
OPERATION = 1000
#: Number of far elements that are judged.
NEAR = 3 * FARTHEST
#: Number of places along each axis in a sample.
SAMPLE = 4


class Cost(NamedTuple):
    """The elements and operations that a call computes; `whole` if all are counted."""

    elements: int
    operations: int
    whole: bool = True

    @property
    def work(self) -> int:
        """The work of a judgement, in elements: those beyond `FULL` count twice."""
        again = max(0, self.elements - FULL)
        return self.elements + again + OPERATION * max(1, self.operations)


class Question(Asked):
    """The right tensors of a problem, evaluated as far as a judgement needs them."""

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the tensors."""
        with graph.ties("first"):
            return tuple(self.build(np.dtype(np.float64)))

    @functools.cached_property
    def right(self) -> Reference:
        """The right tensors, with all radii."""
        return Reference(self)

    @property
    def known(self) -> Reference | None:
        """The right tensors with their radii, if they were needed in full."""
        return self.__dict__.get("right")

    def judge(
        self,
        got: Mapping[str, Array | None],
        dtypes: Mapping[str, str],
        *,
        flushes: bool = False,
    ) -> tuple[Judgement, ...]:
        """Judge tensors; the judgements are in their order.

        `dtypes` are their dtypes in the framework; with `flushes` it takes subnormal
        numbers for zeros.

        Raises:
            FloatingPointError: subnormal numbers are flushed to zero in this thread.
        """
        require_subnormals()
        found: dict[str, Judgement] = {}
        large = any(a is not None and a.size >= LARGE for a in got.values())
        if large and self.known is None:
            for hasty in (True, False):
                looked, part = Look(self, got, dtypes, hasty), dict[str, Judgement]()
                parts = len(looked.far) * OPERATION * looked.operations
                least = MOST if looked.vague else min(MOST, max(FULL, parts))
                if looked.far and looked.size > least:
                    far = {name: np.asarray(got[name]) for name in looked.far}
                    part = self._in_part(far, looked)
                if not any(part[n].passes for n in looked.skipped & part.keys()):
                    break
            # The elements farthest off are no fair sample: alone they reject nothing,
            # and do not tell whether half of all are vacuous.
            if looked.size <= MOST:
                part = {
                    name: judgement
                    for name, judgement in part.items()
                    if judgement.verdict == "agree" and judgement.vacuous <= SMALL
                }
            found = part | looked.judgements
        left = {name: array for name, array in got.items() if name not in found}
        if left:
            judged = judge_tensors(self.right, left, dtypes, flushes=flushes)
            found |= {j.tensor: j for j in judged}
        return tuple(found[name] for name in got)

    def part(self, boxes: Mapping[str, Box]) -> Question:
        """The right tensors at some positions of each axis."""

        def build(wide: np.dtype[Any]) -> dict[str, graph.Node]:
            nodes, parts = self.build(wide), Parts()
            (graph.recorded() or graph.Record()).names += nodes
            with deep_calls():
                return {n: parts.part(nodes[n], box) for n, box in boxes.items()}

        return Question(build, self.dtype, self.compute)

    def _in_part(self, got: Mapping[str, Array], looked: Look) -> dict[str, Judgement]:
        """Judge tensors by the elements farthest off, and by a sample.

        They have one graph: nodes that several of them need are computed once. But the
        gradient of a weight, which needs all rows, has one of its own: to excuse an
        error takes many passes over all nodes that were judged with it.
        """
        seed = int(np.random.default_rng().integers(1 << 31))
        rng = np.random.default_rng(seed)
        boxes = {n: _box(a.shape, looked.far[n], rng) for n, a in got.items()}
        sizes, found = self.part(boxes).sizes(), dict[str, Judgement]()
        for far_more in (False, True):
            names = [n for n in got if (sizes[n] > MOST) == far_more]
            if names:
                right = self.part({n: boxes[n] for n in names}).right
                right.longest, right.limit = looked.longest, looked.limit
                right.pairs = right.pairs[:-1]  # the norm of the farthest is no rms
                some = {n: np.asarray(got[n][np.ix_(*boxes[n])]) for n in names}
                judged = judge_tensors(right, some, dict.fromkeys(names, self.dtype))
                found |= {j.tensor: j for j in judged}
        return {
            n: _in_place(found[n], boxes[n], got[n], seed, looked.far[n]) for n in boxes
        }

    def sizes(self) -> dict[str, int]:
        """How many elements all values have that each tensor needs."""
        with graph.ties("first"):
            made = self.build(np.dtype(np.float64)).items()
        return {n: sum(v.size for v in graph.topological_order([y])) for n, y in made}


def _box(
    shape: tuple[int, ...], far: Array, rng: np.random.Generator
) -> tuple[Array, ...]:
    """Positions along each axis: of the elements farthest off, and some at random.

    Along axes before the last two, heads and images, only those of the farthest by
    ratio and by error; any, if no element is off (a pool of equal numbers).
    """
    far = far[:NEAR] if far.size else rng.integers(int(np.prod(shape)), size=2)
    places = np.unravel_index(far, shape) if shape else ()
    heads = [np.unique(p[[0, -1]]) for p in places[:-2]]
    return *heads, *(
        np.union1d(p, rng.choice(n, min(n, SAMPLE), replace=False))
        for p, n in zip(places[-2:], shape[-2:], strict=True)
    )


def _in_place(
    j: Judgement, box: Sequence[Array], whole: Array, seed: int, far: Array
) -> Judgement:
    """The judgement of some elements, with its worst index in the whole tensor."""
    there = tuple(int(p[i]) for p, i in zip(box, j.worst_index, strict=False))
    old, new = (f"{j.tensor}[{', '.join(map(str, i))}]" for i in (j.worst_index, there))
    count = int(np.prod([p.size for p in box]))
    where = f"those farthest off or beside these, and a sample (seed {seed})"
    said = f"of {whole.size} elements, {count} were judged in full: {where}"
    lies = ", ".join(f"{s.start}:{s.stop}" for s in box_of(far, whole.shape))
    said += f"; what is off lies in [{lies}]" if far.size and not j.passes else ""
    message = f"{j.message.replace(old, new, 1)}; {said}"
    return replace(j, worst_index=there, message=message)
