"""Whether a forward can be its own definition."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench
from gradwatch.harness.check.frameworks.pytorch import array_of
from gradwatch.harness.check.frameworks.runs import floating, nodes_behind, numbers

#: A step in float64, whose own error is about its square root: 1e-12, or 1e-8 by it.
STEP = 1e-6
#: Shares of a slope within which a difference quotient shows it.
NEAR = 1e-3


def steps_have_its_slope(subject: Any, trial: Trial) -> bool:
    """Whether the steps of a forward have the slope that its values show, in float64.

    They have another one where it rounds, or looks for a root by bisection. Asked only
    of what runs a `torch.autograd.Function`: a detach elsewhere is meant.
    """

    def widened(value: Any) -> Any:
        if not floating(value):
            return value
        return value.detach().to(torch.promote_types(value.dtype, torch.float64))

    args, kwargs = tree_map(widened, (trial.args, dict(trial.kwargs)))
    wide = replace(trial, args=args, kwargs=kwargs, dtype="float64")
    bench = Bench(subject, None, wide)
    bound, call = bench.bound, bench.call
    own = torch.autograd.function.BackwardCFunction
    if not any(isinstance(node, own) for node in nodes_behind(bench.expected.outputs)):
        return True
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

    nodes = bench.truth(cotangents).right.graphs["first"]
    slope = sum(
        float(np.sum(nodes[f"d{name}"].value * array_of(along)))
        for name, along in zip(bound.names, moved, strict=True)
        if along is not None and f"d{name}" in nodes
    )
    with torch.no_grad():
        seen = (value(STEP) - value(-STEP)) / (2 * STEP)
    return abs(seen - slope) <= NEAR * (abs(seen) + abs(slope))
