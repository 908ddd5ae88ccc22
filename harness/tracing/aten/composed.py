"""Operators that PyTorch does not decompose, written in its own functions.

For real numbers the result is compared with PyTorch's at each call.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812  # as usual

Tensor = torch.Tensor


def _grid_sampler_3d(
    x: Tensor, grid: Tensor, mode: int, padding: int, align: bool
) -> Tensor:
    """Planes sampled, then weighted by samples of the third axis's unit vectors."""
    batch, channels, depth = x.shape[:3]
    sample, how = torch.ops.aten.grid_sampler_2d, (mode, padding, align)
    places = grid.reshape(batch, 1, -1, 3)
    planes = sample(x.flatten(1, 2), places[..., :2], *how)
    axis = torch.eye(depth, dtype=x.dtype)[None, :, :, None].expand(batch, -1, -1, 1)
    along = torch.stack((torch.zeros_like(places[..., 2]), places[..., 2]), -1)
    weights = sample(axis, along, *how).reshape(batch, 1, depth, -1)
    y = (planes.reshape(batch, channels, depth, -1) * weights).sum(2)
    return y.reshape(batch, channels, *grid.shape[1:4])


def _trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    to_a: Sequence[int],
    to_b: Sequence[int],
    to_c: Sequence[int],
    dims: Sequence[int],
    unroll: int = 1,
) -> Tensor:
    pairs = (a, to_a), (b, to_b), (c, to_c)
    wide = [functools.reduce(Tensor.unsqueeze, sorted(new), x) for x, new in pairs]
    return (wide[0] * wide[1] * wide[2]).sum(list(dims))


def _linear_cross_entropy(
    x: Tensor,
    matrix: Tensor,
    target: Tensor,
    bias: Tensor | None,
    weight: Tensor | None,
    reduction: str,
    ignored: int,
    smoothing: float,
    *_: Any,
) -> tuple[Tensor, ...]:
    """The loss, without the gradients that the operator returns with it."""
    y = F.cross_entropy(
        F.linear(x, matrix, bias),
        target,
        weight,
        ignore_index=ignored,
        reduction=reduction,
        label_smoothing=smoothing,
    )
    return y, *(x.new_empty(0) for _ in range(3))


def _embedding_bag(
    table: Tensor,
    indices: Tensor,
    offsets: Tensor,
    by_frequency: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Tensor | None = None,
    include_last: bool = False,
    padding: int = -1,
) -> tuple[Tensor, ...]:
    starts = offsets[:-1] if include_last else offsets
    bag = torch.searchsorted(starts, torch.arange(len(indices)), right=True) - 1
    rows = F.embedding(indices, table, scale_grad_by_freq=by_frequency)
    rows = rows if weights is None else rows * weights[:, None]
    kept = indices != padding
    into = bag[kept][:, None].expand(-1, table.shape[1])
    y = rows.new_zeros(len(starts), table.shape[1]).scatter_reduce(
        0, into, rows[kept], ("sum", "mean", "amax")[mode], include_self=False
    )
    return y, bag, bag, bag


def _segment_reduce(
    data: Tensor,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    initial: Any = None,
    **_: Any,
) -> Tensor:
    """The rows of each segment; a mean does not count what it starts from."""
    lengths = offsets.diff(dim=-1) if lengths is None else lengths
    rows, counts = data.flatten(0, axis), lengths.flatten()
    how = {"mean": "sum", "max": "amax", "min": "amin"}.get(reduce, reduce)
    empty = {"prod": 1.0, "max": -math.inf, "min": math.inf}.get(reduce, 0.0)
    start = empty if initial is None else initial
    wide = (-1, *[1] * (rows.ndim - 1))
    into = torch.repeat_interleave(counts).reshape(wide).expand_as(rows)
    y = rows.new_full((len(counts), *rows.shape[1:]), start)
    y = y.scatter_reduce(0, into, rows, how, include_self=initial is not None)
    y = y / counts.reshape(wide) if reduce == "mean" else y
    return y.reshape(*lengths.shape, *rows.shape[1:])


def _embedding_renorm(table: Tensor, index: Tensor, most: float, order: float) -> Any:
    """The rows that are looked up, each no longer than it may be."""
    size = torch.linalg.vector_norm(table, order, 1, keepdim=True)
    seen = torch.bincount(index.reshape(-1), minlength=len(table))[:, None] > 0
    return torch.where(seen & (size > most), table * (most / (size + 1e-7)), table)


COMPOSED: dict[str, Callable[..., Any]] = {
    "embedding_renorm": _embedding_renorm,
    "grid_sampler_3d": _grid_sampler_3d,
    "_trilinear": _trilinear,
    "segment_reduce": _segment_reduce,
    "_embedding_bag": _embedding_bag,
    "_embedding_bag_forward_only": _embedding_bag,
    "_linear_cross_entropy_batch_chunked": _linear_cross_entropy,
    "_linear_cross_entropy_batch_chunked_no_reduction": (
        lambda x, matrix, target, bias, weight, ignored, *_: _linear_cross_entropy(
            x, matrix, target, bias, weight, "none", ignored, 0.0
        )[0]
    ),
}
