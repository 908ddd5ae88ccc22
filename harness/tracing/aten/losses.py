"""Losses that PyTorch computes in one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradwatch.harness.tracing.values import as_exact, as_float, constant
from gradwatch.impls import graph

Rule = Callable[..., Any]


def _linear_cross_entropy(
    x: Any,
    matrix: Any,
    target: Any,
    bias: Any,
    weight: Any,
    reduction: str,
    ignore_index: int,
    *_: Any,
) -> Any:
    """Cross entropy of x @ matrix.T + bias; nobody asks for the gradients beside it."""
    logits = as_float(x) @ graph.matrix_transpose(as_float(matrix))
    logits = logits if bias is None else logits + as_float(bias)
    rows = logits if logits.ndim == 2 else graph.reshape(logits, (1, logits.size))
    chosen = as_exact(target).numpy().reshape(-1)
    counted = chosen != ignore_index
    places = np.arange(chosen.size) * rows.shape[1] + np.where(counted, chosen, 0)
    lost = graph.logsumexp(rows, axis=-1) - graph.gather(rows, index=places)
    weights = constant(np.ones(rows.shape[1])) if weight is None else as_float(weight)
    kept = constant(counted) * graph.gather(weights, index=np.where(counted, chosen, 0))
    lost = lost * kept
    if reduction == "none":
        return graph.reshape(lost, tuple(as_exact(target).shape))
    total = graph.sum(lost)
    return total / graph.sum(kept) if reduction == "mean" else total, None, None, None


def _without_reduction(
    x: Any, matrix: Any, target: Any, bias: Any, weight: Any, ignore_index: int, *_: Any
) -> Any:
    return _linear_cross_entropy(x, matrix, target, bias, weight, "none", ignore_index)


ON_VALUES: dict[str, Rule] = {
    "_linear_cross_entropy_batch_chunked": _linear_cross_entropy,
    "_linear_cross_entropy_batch_chunked_no_reduction": _without_reduction,
}
