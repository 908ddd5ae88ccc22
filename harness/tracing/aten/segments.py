"""Operators that reduce groups of elements which indices name.

How a group is reduced: `windows.grouped`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwatch.harness.tracing.aten.moves import positions
from gradwatch.harness.tracing.rules.windows import grouped, reduced_into
from gradwatch.harness.tracing.values import as_exact, as_float, constant, written_over
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]
Index = NDArray[np.intp]


def _scatter_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Node:
    x, source, index = as_float(x), as_float(source), as_exact(index)
    if not index.numel():
        return x
    if x.ndim:
        corner = tuple(slice(0, n) for n in index.shape)
        place = torch.gather(positions(x), dim, index)
        source = source[corner] if index.ndim else source
    else:
        place = torch.zeros(source.shape, dtype=torch.long)
    return reduced_into(x, place.numpy(), source, reduce, include_self)


def _index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, **how: bool
) -> Node:
    """A scatter whose index is the same along the other axes."""
    shape = [1] * source.ndim
    shape[dim : dim + 1] = [-1] if source.ndim else []
    place = as_exact(index).reshape(shape).expand(source.shape)
    return _scatter_reduce(x, dim, place, source, reduce, **how)


def _segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
    **_: Any,
) -> Node:
    data = as_float(data)
    given = as_exact(lengths if lengths is not None else offsets.diff(dim=-1))
    counts = given.numpy()
    lead, inner = data.shape[: axis + 1], math.prod(data.shape[axis + 1 :])
    segment = np.full(lead, -1, np.intp)
    for i, row in enumerate(counts.reshape(-1, counts.shape[-1])):
        ids = np.repeat(np.arange(row.size), row) + i * row.size
        segment.reshape(-1, lead[-1])[i, : ids.size] = ids
    places = segment.reshape(-1, 1) * inner + np.arange(inner)
    group = np.where(segment.reshape(-1, 1) < 0, -1, places).ravel()
    count = counts.size * inner
    start = None if initial is None else constant(np.full(count, float(initial)))
    y = grouped(data, group, count, reduce, start, count_start=False)
    return graph.reshape(y, (*counts.shape, *data.shape[axis + 1 :]))


# A loss of sequences ------------------------------------------------------------------


def _ctc(steps: Node, labels: list[int], blank: int) -> Node:
    """-log of the probability of all ways to write the labels, with blanks between.

    Graves and others, Connectionist temporal classification, 2006, section 4.1, in
    logarithms. `steps` are log probabilities, of each step a row. A label may come
    after a blank, itself, or another label; only states that can be reached are kept.
    """
    states = [blank, *(s for label in labels for s in (label, blank))]
    alive = list(range(min(2, len(states))))
    alpha = steps[0, states[:2]]
    for step in range(1, steps.shape[0]):
        sources = [
            [
                q
                for q in (s, s - 1, s - 2)
                if q in alive and (q > s - 2 or states[s] not in (blank, states[q]))
            ]
            for s in range(len(states))
        ]
        after = [s for s, before in enumerate(sources) if before]
        places = np.full((len(after), 3), -1)
        for row, s in enumerate(after):
            places[row, : len(sources[s])] = [alive.index(q) for q in sources[s]]
        terms = graph.where(places >= 0, graph.gather(alpha, index=places), -math.inf)
        alpha = (
            graph.logsumexp(terms, axis=-1) + steps[step, [states[s] for s in after]]
        )
        alive = after
    ends = [alive.index(s) for s in (len(states) - 1, len(states) - 2) if s in alive]
    return -graph.logsumexp(alpha[ends]) if ends else constant(math.inf)


def _as_posterior(steps: Node, loss: Node) -> Node:
    """Log probabilities, each gradient with the rounding of an exp(a + b + loss).

    So it comes from forward and backward variables (equation 16 of Graves and others),
    which are about as large as the loss.
    """
    if not np.isfinite(loss.value):
        return steps
    whole = graph.broadcast_to(loss, steps.shape)
    one = graph.stop_gradient(graph.exp(whole * 1.0 - whole))
    return written_over(steps * one, steps)


def _ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Node, None]:
    log_probs, targets = as_float(log_probs), as_exact(targets)
    spans = [[int(n) for n in as_exact(v)] for v in (input_lengths, target_lengths)]
    rows = targets if targets.ndim == 2 else targets.split(spans[1])
    losses = []
    for i, (count, n) in enumerate(zip(*spans, strict=True)):
        steps, labels = log_probs[:count, i], rows[i][:n].tolist()
        rounded = _as_posterior(steps, _ctc(steps, labels, blank))
        losses.append(_ctc(rounded, labels, blank))
    if zero_infinity:
        losses = [y if np.isfinite(y.value) else constant(0.0) for y in losses]
    return graph.stack(losses), None


ON_VALUES: dict[str, Rule] = {
    "_ctc_loss": _ctc_loss,
    "scatter_reduce": _scatter_reduce,
    "index_reduce": _index_reduce,
    "segment_reduce": _segment_reduce,
}
