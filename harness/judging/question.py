"""What tensors are judged against: cheaply where that is enough, else in full."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gradwatch.harness.judging.acceptance.early import Looked, is_large, looked_at
from gradwatch.harness.judging.acceptance.parts import Parts, deep_calls
from gradwatch.harness.judging.judgement import Judgement
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
from gradwatch.harness.judging.rounding.errors import limit_for
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem

#: Elements of all values of a graph up to which tensors are judged in full, and from
#: which they never are: that takes about a hundred bytes an element.
FULL, MOST = 1 << 21, 1 << 24
#: To judge an operation takes as long as so many elements of its result: .5 ms, .5 us
#: (`cpu-2core`). Each tensor has two parts, and each of them nearly all operations.
OPERATION = 1000
#: Places of each axis of a sample.
SAMPLE = 4


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
        found: dict[str, Judgement] = {}
        if is_large(got) and "right" not in self.__dict__:
            asked = self.build, self.dtype, got, dtypes, self.compute
            looked = looked_at(*asked)
            found = looked.judgements
            far = got.keys() & looked.far.keys() - found.keys()
            parts = 2 * len(far) * OPERATION * looked.operations
            if looked.size > min(MOST, max(FULL, parts)):
                for name in far:
                    array = got[name]
                    assert array is not None
                    found[name] = self._in_part(name, array, looked)
        left = {name: array for name, array in got.items() if name not in found}
        if left:
            judged = judge_tensors(self.right, left, dtypes, dtype=self.dtype)
            found |= {j.tensor: j for j in judged}
        return tuple(found[name] for name in got)

    def _in_part(self, name: str, got: Array, looked: Looked) -> Judgement:
        """The judgement of the elements farthest off, and of a sample."""
        seed = int(np.random.default_rng().integers(1 << 31))
        rng = np.random.default_rng(seed)
        far = np.unravel_index(looked.far[name], got.shape) if got.ndim else ()
        boxes = [tuple(map(np.unique, far))] * bool(looked.far[name].size)
        boxes.append(
            tuple(np.sort(rng.choice(n, min(n, SAMPLE), False)) for n in got.shape)
        )
        judged = []
        for box in boxes:
            judged.append(self._judged_in(name, got, box, looked.longest))
            if not judged[-1].passes:
                break
        worst = max(judged, key=lambda j: (not j.passes, j.ratio / (j.limit or 1.0)))
        sizes = [int(np.prod([p.size for p in box])) for box in boxes]
        where = f"a sample of {sizes[-1]} elements (seed {seed})"
        if len(boxes) > 1:
            where = f"{sizes[0]} elements farthest off or beside these, and {where}"
        said = f"{worst.message}; of {got.size} elements, {where} were judged in full"
        return worst.changed(message=said)

    def _judged_in(
        self, name: str, got: Array, box: Sequence[Array], longest: int
    ) -> Judgement:
        """The judgement of the elements at some places of each axis."""
        wide = wider(PRECISIONS[self.dtype])

        def part() -> dict[str, graph.Node]:
            return {name: Parts().part(self.build(wide)[name], tuple(box))}

        with deep_calls():
            right = reference_of_graph(part, self.dtype, self.compute)
        right.longest, right.limit = longest, limit_for(longest)
        some = got[np.ix_(*box)] if got.ndim else got
        (j,) = judge_tensors(right, {name: some}, {name: self.dtype}, dtype=self.dtype)
        there = tuple(int(p[i]) for p, i in zip(box, j.worst_index, strict=False))
        old, new = (f"{name}[{', '.join(map(str, i))}]" for i in (j.worst_index, there))
        return j.changed(worst_index=there, message=j.message.replace(old, new, 1))
