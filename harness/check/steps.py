"""Whether a forward can be its own definition."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench
from gradwatch.harness.check.frameworks.pytorch import array_of
from gradwatch.harness.check.frameworks.runs import (
    Graph,
    floating,
    nodes_behind,
    numbers,
)

#: A step in float64, whose own error is about its square root: 1e-12, or 1e-8 by it.
STEP = 1e-6
#: Shares of a slope within which a difference quotient shows it.
NEAR = 1e-3


def steps_have_its_slope(subject: Any, trial: Trial) -> bool:
    """Whether the steps of a forward have the slope that its values show, in float64.

    They have another one where it rounds, or looks for a root by bisection. A detach is
    meant, but where a `torch.autograd.Function` runs, or a hook gives that slope.
    """

    def widened(value: Any) -> Any:
        if not floating(value):
            return value
        return value.detach().to(torch.promote_types(value.dtype, torch.float64))

    args, kwargs = tree_map(widened, (trial.args, dict(trial.kwargs)))
    wide = replace(trial, args=args, kwargs=kwargs, dtype="float64")
    bench = Bench(subject, None, wide)
    bound, call = bench.bound, bench.call
    cotangents = bench.cotangents()
    pairs = enumerate(zip(bound.tensors, bound.wanted, strict=True))
    moved = [wide.tangent(t, i) if wanted else None for i, (t, wanted) in pairs]

    def value(step: float) -> float:
        pairs = zip(bound.tensors, moved, strict=True)
        outputs = call(*(t if v is None else t + step * v for t, v in pairs))
        products = zip(outputs, cotangents, strict=False)
        return sum(
            float((numbers(y) * numbers(dy)).sum())
            for y, dy in products
            if dy is not None
        )

    def slope(gradients: Iterable[Any]) -> float:
        pairs = zip(gradients, moved, strict=True)
        both = ((g, v) for g, v in pairs if g is not None and v is not None)
        return sum(float(np.sum(g * array_of(v))) for g, v in both)

    with torch.no_grad():
        seen = (value(STEP) - value(-STEP)) / (2 * STEP)

    def shows(other: float) -> bool:
        return abs(seen - other) <= NEAR * (abs(seen) + abs(other))

    nodes = bench.truth(cotangents).right.graphs["first"]
    right = (nodes.get(f"d{name}") for name in bound.names)
    if shows(slope(None if node is None else node.value for node in right)):
        return True
    own = torch.autograd.function.BackwardCFunction
    if any(isinstance(node, own) for node in nodes_behind(bench.expected.outputs)):
        return False
    found = Graph(call, bound.tensors, bound.wanted).backward(cotangents)
    return not shows(slope(None if g is None else array_of(g) for g in found))
