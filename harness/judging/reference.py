"""What the right answer is, and how far from it rounding alone may lead.

The op's formula runs in the graph engine in a type wider than the one under test
(float64 for 32 and 16 bits, extended precision for float64), with a running error
beside every value. The reference's own roundoff is part of the radius: where extended
precision is no wider than float64, the radius doubles by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging.rounding import (
    PRECISIONS,
    Precision,
    longest_reduction,
    running_errors,
)
from impls import graph
from impls.contract import Problem, as_tuple

Array = NDArray[Any]


@dataclass(frozen=True)
class Truth:
    """One tensor of the right answer.

    `value` is in the wide type; `radius`, of the same shape, is how far an honest
    implementation may land from it (infinite where rounding may destroy everything).
    """

    tensor: str
    value: Array
    radius: NDArray[np.float64]


@dataclass(frozen=True)
class Reference:
    """All tensors of the right answer, once for each way of breaking ties.

    `truths[convention]` holds gradients, outputs and new state by name. There is one
    convention, "first", unless the gradient is a set. A ratio of error to radius up to
    `limit` is rounding.
    """

    truths: Mapping[str, Mapping[str, Truth]]
    limit: float
    wide: str

    @property
    def set_valued(self) -> bool:
        """Whether some gradient depends on how ties are broken."""
        return len(self.truths) > 1

    def hangs_on_ties(self, tensor: str) -> bool:
        """Whether this tensor is another one where ties are broken differently."""
        first, *others = (truths[tensor].value for truths in self.truths.values())
        return any(not np.array_equal(first, v, equal_nan=True) for v in others)


def limit_for(reduction: int) -> float:
    """The judge's one constant, for sums of up to `reduction` terms.

    16 lies above every honest ratio met in calibration (at most 10.2); sqrt(n)/2 admits
    sums added up one by one, whose error grows faster than that of a blocked sum.
    """
    return 16 + math.sqrt(reduction) / 2


def wider(precision: Precision) -> np.dtype[Any]:
    """The type that gradients of this precision are judged in."""
    return np.dtype(np.longdouble if precision.name == "float64" else np.float64)


def require_subnormals() -> None:
    """Refuse to judge where the processor flushes subnormal numbers to zero.

    The reference would flush what the implementation under test flushes, and a wrong
    zero would agree. The flag belongs to the thread: PyTorch's call sets it for ours.

    Raises:
        FloatingPointError: a subnormal number, made or read, is taken for zero.
    """
    smallest = np.array([np.finfo(np.float64).tiny])
    if not (smallest / 2)[0] > 0 or not (np.array([5e-324]) * 2.0**60)[0] > 0:
        raise FloatingPointError(
            "subnormal numbers are flushed to zero in this thread, so that nothing can "
            "be judged in it: call torch.set_flush_denormal(False) before, or judge in "
            "another process"
        )


def reference(problem: Problem) -> Reference:
    """Gradients, outputs and state of a problem, with their rounding radii.

    Raises:
        Unsupported: the op has no formula.
        FloatingPointError: subnormal numbers are flushed to zero in this thread.
    """
    require_subnormals()
    precision = PRECISIONS[problem.dtype]
    wide = wider(precision)
    problem = replace(
        problem,
        inputs={n: _rounded(a, precision, wide) for n, a in problem.inputs.items()},
        cotangents=[
            None if a is None else _rounded(a, precision, wide)
            for a in problem.cotangents
        ],
    )
    nodes = _nodes(problem, "first")
    order = graph.topological_order(nodes.values())
    truths = {"first": _truths(nodes, order, precision, wide)}
    if _selects(order):
        for convention in graph.TIES[1:]:
            others = _nodes(problem, convention)
            behind = graph.topological_order(others.values())
            other = _truths(others, behind, precision, wide)
            if _differ(truths["first"], other):
                truths[convention] = other
    return Reference(truths, limit_for(longest_reduction(order)), wide.name)


def _rounded(array: Array, precision: Precision, wide: np.dtype[Any]) -> Array:
    """In the wide type, what the precision holds of an array; integers stay."""
    if array.dtype.kind in "biu":
        return array
    held = array.astype(wide)
    return held if array.dtype.name == precision.name else precision.round(held)


def _nodes(problem: Problem, convention: str) -> dict[str, graph.Node]:
    """The graph of the whole problem: gradients by name, then outputs and state."""
    op = problem.op
    leaves = {n: graph.variable(a) for n, a in problem.inputs.items()}
    with graph.ties(convention):
        returned = op.said("formula")(
            graph, *problem.arguments(leaves), **problem.attributes
        )
        results = dict(zip(op.outputs + op.state, as_tuple(returned), strict=True))
        graph.forward(results.values())
        floating = [n for n in op.outputs if n not in op.integers]
        cotangents = [
            np.zeros(results[n].shape) if dy is None else dy
            for n, dy in zip(op.outputs, problem.cotangents, strict=True)
            if n in floating
        ]
        found = graph.gradient(
            [results[n] for n in floating],
            cotangents,
            [leaves[n] for n in problem.wanted],
        )
    gradients = {
        f"d{n}": graph.variable(np.zeros_like(leaves[n].value)) if g is None else g
        for n, g in zip(problem.wanted, found, strict=True)
    }
    return {**gradients, **results}


def _truths(
    nodes: Mapping[str, graph.Node],
    order: Sequence[graph.Node],
    precision: Precision,
    wide: np.dtype[Any],
) -> dict[str, Truth]:
    graph.forward(nodes.values())
    errors = running_errors(order, precision)
    roundoff = precision.roundoff + float(np.finfo(wide).eps) / 2
    with np.errstate(all="ignore"):
        return {
            name: Truth(name, node.value, roundoff * errors[node])
            for name, node in nodes.items()
        }


def _selects(order: Sequence[graph.Node]) -> bool:
    """Whether the graph holds a choice that a tie could turn around."""
    names = {node.primitive.name for node in order if node.primitive}
    return bool(names & {*graph.SELECTIONS, "argmax"})


def _differ(one: Mapping[str, Truth], other: Mapping[str, Truth]) -> bool:
    return any(
        not np.array_equal(truth.value, other[name].value, equal_nan=True)
        for name, truth in one.items()
    )
