"""What a platform does to numbers, declared once for all its backends, with the reason.

A processor may be told to take subnormal numbers for zero, where they are read and
where they come out (Intel 64 manual, volume 1, section 10.2.3: FTZ and DAZ). Whatever
runs there is right if it is right for the numbers that it was given, or for those with
zeros in place of subnormal ones: a comparison, a tie or an index can be another one. A
subnormal result is then a zero, too: which one a maximum takes, nothing there can see.
What is wrong for both stays wrong. The rounding radius allows a flushed result
everywhere (`Precision.floor`); this is about flushed inputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS, Precision
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.project.traits import traits_of
from gradwatch.impls.catalogue import backend_names, framework_of
from gradwatch.impls.contract import Problem

if TYPE_CHECKING:  # workers judge too, and have no library for documents
    from gradwatch.harness.project.records import AgreeRecord

Array = NDArray[Any]

#: How a judgement calls it, where a tensor is right by this alone.
FLUSHED = "flushed"

#: Ops whose subnormal numbers were judged before a declaration counts as tested. Half
#: of all ops have a comparison or a sum on which it shows.
ENOUGH = 10


@dataclass(frozen=True)
class Flushing:
    """A framework that takes subnormal numbers for zero on the CPU, and why.

    The other fields are those by which a known outcome is shown.
    """

    framework: str
    reason: str
    op: str = "every op"
    tensor: str = "every tensor"
    verdict: str = "convention"

    @property
    def backend(self) -> str:
        """The backends that it covers."""
        return f"{self.framework}_*"


FLUSHING = tuple(
    Flushing(name, why)
    for name in sorted({*map(framework_of, backend_names())})
    if (why := traits_of(name).flushes)
)


def judged_as_flushed(
    framework: str,
    problem: Problem,
    judgements: Sequence[Judgement],
    got: Mapping[str, Array | None],
    dtypes: Mapping[str, str],
) -> tuple[Judgement, ...]:
    """The same judgements, but that what is right for flushed inputs is right.

    They are returned as they are where the framework does not flush, where all of them
    pass, or where no number is subnormal.
    """
    if (
        not traits_of(framework).flushes
        or problem.device != "cpu"
        or all(j.passes for j in judgements)
    ):
        return tuple(judgements)
    zeros = flushed(problem)
    if zeros is None:
        return tuple(judgements)
    precision = PRECISIONS[problem.dtype]
    read = {n: None if a is None else _zeroed(a, precision) for n, a in got.items()}
    others = judge_tensors(reference(zeros), read, dtypes, dtype=problem.dtype)
    return tuple(
        _flushed(other) if other.passes and not first.passes else first
        for first, other in zip(judgements, others, strict=True)
    )


def _flushed(judgement: Judgement) -> Judgement:
    if judgement.verdict not in ("agree", "convention", "imprecise"):
        return judgement
    message = f"{judgement.tensor}: right for subnormal numbers taken for zero"
    return judgement.changed(verdict="convention", convention=FLUSHED, message=message)


def flushed(problem: Problem) -> Problem | None:
    """The problem with zeros for its subnormal numbers; None if it has none.

    Those of float16 are none: they are computed in float32.
    """
    precision = PRECISIONS[problem.dtype]
    if precision.name == "float16":
        return None
    given = [*problem.inputs.values(), *problem.cotangents]
    if not any(a is not None and _subnormal(a, precision).any() for a in given):
        return None
    return replace(
        problem,
        inputs={n: _zeroed(a, precision) for n, a in problem.inputs.items()},
        cotangents=[
            None if a is None else _zeroed(a, precision) for a in problem.cotangents
        ],
    )


def _subnormal(array: Array, precision: Precision) -> NDArray[np.bool_]:
    if array.dtype.kind != "f":
        return np.zeros(array.shape, bool)
    size = np.abs(array)
    subnormal: NDArray[np.bool_] = (size > 0) & (size < precision.smallest)
    return subnormal


def _zeroed(array: Array, precision: Precision) -> Array:
    signed = np.copysign(np.zeros_like(array), array)
    return np.where(_subnormal(array, precision), signed, array)


def unseen(records: Iterable[AgreeRecord]) -> tuple[Flushing, ...]:
    """Declarations that were tested and showed nowhere: they are no longer true."""
    ops: dict[str, set[str]] = defaultdict(set)
    shown = set()
    for record in records:
        if tells(record):
            ops[record.framework].add(record.op)
        if shows(record):
            shown.add(record.framework)
    return tuple(
        one
        for one in FLUSHING
        if len(ops[one.framework]) >= ENOUGH and one.framework not in shown
    )


def tells(record: AgreeRecord) -> bool:
    """Whether a record tests a declaration: it was judged on subnormal values."""
    subnormal = record.regime == "subnormal" and record.dtype != "float16"
    return subnormal and known.tells(record)


def shows(record: AgreeRecord) -> bool:
    """Whether what is declared occurred in a record."""
    return record.convention == FLUSHED
