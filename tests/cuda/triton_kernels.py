# ruff: noqa: N803  # compile-time constants of a kernel are capitals in Triton
"""Softmax, layer norm and attention in Triton, forward and backward, as Functions.

The tests and figures of docs/cuda.md judge them. Each computes in float32 and rounds
what it stores; attention rounds the operands of its products to the inputs' dtype, as
tensor cores do. Sums over rows have a fixed order: nothing is added atomically.

Without a GPU they run in Triton's interpreter, with TRITON_INTERPRET=1.

Sources: Milakov and Gimelshein 2018, arXiv:1805.02867 (online softmax); Dao 2023,
arXiv:2307.08691 (attention in blocks, its backward by the saved logarithm of the sum).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# Softmax over the last axis: a program for each row -----------------------------------


@triton.jit
def _softmax_forward(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    row = tl.load(x + at, mask=inside, other=-float("inf")).to(tl.float32)
    e = tl.exp(row - tl.max(row, 0))
    tl.store(y + at, e / tl.sum(e, 0), mask=inside)


@triton.jit
def _softmax_backward(y, dy, dx, n, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * n + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < n
    p = tl.load(y + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(dx + at, p * (g - tl.sum(p * g, 0)), mask=inside)


class Softmax(torch.autograd.Function):
    """Returns exp(x) / sum(exp(x)) over the last axis of x (..., n)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        x = x.contiguous()
        y, n = torch.empty_like(x), x.shape[-1]
        if y.numel():
            _softmax_forward[(x.numel() // n,)](x, y, n, triton.next_power_of_2(n))
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> Tensor:
        (y,), dy = ctx.saved_tensors, dys[0].contiguous()
        dx, n = torch.empty_like(y), y.shape[-1]
        if y.numel():
            grid = (y.numel() // n,)
            _softmax_backward[grid](y, dy, dx, n, triton.next_power_of_2(n))
        return dx


# Layer norm over the last axis --------------------------------------------------------


@triton.jit
def _norm_forward(x, w, b, y, means, rstds, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    value = tl.load(x + row * n + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / n
    centred = tl.where(inside, value - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(centred * centred, 0) / n + eps)
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(b + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * n + column, centred * rstd * weight + bias, mask=inside)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)


@triton.jit
def _norm_backward(
    x,
    w,
    dy,
    dx,
    dws,
    dbs,
    means,
    rstds,
    rows,
    n,
    each,
    BLOCK: tl.constexpr,
):
    """Of `each` rows: their dx, and their part of the sums dw and db."""
    part = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < n
    weight = tl.load(w + column, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for i in range(each):
        row = part * each + i
        here = inside & (row < rows)
        value = tl.load(x + row * n + column, mask=here, other=0.0).to(tl.float32)
        g = tl.load(dy + row * n + column, mask=here, other=0.0).to(tl.float32)
        rstd = tl.load(rstds + row, mask=row < rows, other=0.0)
        mean_x = tl.load(means + row, mask=row < rows, other=0.0)
        h = tl.where(here, (value - mean_x) * rstd, 0.0)
        dw += g * h
        db += g
        g *= weight
        along = tl.sum(g * h, 0) / n
        mean = tl.sum(g, 0) / n
        tl.store(dx + row * n + column, rstd * (g - mean - h * along), mask=here)
    tl.store(dws + part * n + column, dw, mask=inside)
    tl.store(dbs + part * n + column, db, mask=inside)


class LayerNorm(torch.autograd.Function):
    """Returns the layer norm of x (..., n), with weight and bias (n,)."""

    PARTS = 256  # of the rows; the sums of the parts are added by PyTorch

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
        x, w, b = x.contiguous(), w.contiguous(), b.contiguous()
        n = x.shape[-1]
        rows = x.numel() // n
        y = torch.empty_like(x)
        mean, rstd = x.new_empty(2, rows, dtype=torch.float32)
        block = triton.next_power_of_2(n)
        if rows:
            _norm_forward[(rows,)](x, w, b, y, mean, rstd, n, eps, block)
        ctx.save_for_backward(x, w, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor | None, ...]:
        x, w, mean, rstd = ctx.saved_tensors
        dy, rows, n = dys[0].contiguous(), mean.numel(), x.shape[-1]
        each = max(1, triton.cdiv(rows, LayerNorm.PARTS))
        parts = triton.cdiv(rows, each)
        dx = torch.empty_like(x)
        dws, dbs = x.new_zeros(2, parts, n, dtype=torch.float32)
        block = triton.next_power_of_2(n)
        if rows:
            tensors = (x, w, dy, dx, dws, dbs, mean, rstd)
            _norm_backward[(parts,)](*tensors, rows, n, each, block)
        return dx, dws.sum(0).to(w.dtype), dbs.sum(0).to(w.dtype), None


# Attention without a mask: softmax(q k^T / sqrt(d)) v, a program for each block -------


@triton.jit
def _attention_forward(
    q,
    k,
    v,
    o,
    tops,
    sums,
    n,
    scale,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Of M queries of one head: outputs, largest products, sums of exponentials.

    Products are subtracted before they are scaled. A scaled one that a fused operation
    leaves unrounded, less a rounded one, would be off by an ulp of the largest: by
    20 % of a weight at scores of 10^6.
    """
    head = tl.program_id(1).to(tl.int64) * n
    row = tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    at = (head + row[:, None]) * D + d[None, :]
    queries = tl.load(q + at, mask=row[:, None] < n, other=0.0)
    top = tl.full([M], -float("inf"), tl.float32)
    total = tl.zeros([M], tl.float32)
    out = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        column = start + tl.arange(0, N)
        there = (head + column[:, None]) * D + d[None, :]
        keys = tl.load(k + there, mask=column[:, None] < n, other=0.0)
        values = tl.load(v + there, mask=column[:, None] < n, other=0.0)
        s = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        s = tl.where(column[None, :] < n, s, -float("inf"))
        peak = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2((s - peak[:, None]) * scale)
        less = tl.exp2((top - peak) * scale)
        total = total * less + tl.sum(p, 1)
        out = out * less[:, None]
        out += tl.dot(p.to(values.dtype), values, input_precision="ieee")
        top = peak
    tl.store(o + at, out / total[:, None], mask=row[:, None] < n)
    tl.store(tops + head + row, top, mask=row < n)
    tl.store(sums + head + row, total, mask=row < n)


@triton.jit
def _attention_dkv(
    q,
    k,
    v,
    do,
    dk,
    dv,
    tops,
    sums,
    delta,
    n,
    scale,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Of N keys of one head: the gradients of these and of their values."""
    head = tl.program_id(1).to(tl.int64) * n
    column = tl.program_id(0) * N + tl.arange(0, N)
    d = tl.arange(0, D)
    at = (head + column[:, None]) * D + d[None, :]
    keys = tl.load(k + at, mask=column[:, None] < n, other=0.0)
    values = tl.load(v + at, mask=column[:, None] < n, other=0.0)
    of_k = tl.zeros([N, D], tl.float32)
    of_v = tl.zeros([N, D], tl.float32)
    for start in range(0, n, M):
        row = start + tl.arange(0, M)
        there = (head + row[:, None]) * D + d[None, :]
        queries = tl.load(q + there, mask=row[:, None] < n, other=0.0)
        g = tl.load(do + there, mask=row[:, None] < n, other=0.0)
        # A row beyond the end has no weight: exp2(-inf).
        top = tl.load(tops + head + row, mask=row < n, other=float("inf"))
        total = tl.load(sums + head + row, mask=row < n, other=1.0)
        along = tl.load(delta + head + row, mask=row < n, other=0.0)
        # As in the forward: a product of keys and queries may add in another order.
        s = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        p = tl.exp2((s - top[:, None]) * scale) / total[:, None]
        of_v += tl.dot(tl.trans(p.to(g.dtype)), g, input_precision="ieee")
        dp = tl.dot(g, tl.trans(values), input_precision="ieee")
        ds = (p * (dp - along[:, None])).to(queries.dtype)
        of_k += tl.dot(tl.trans(ds), queries, input_precision="ieee")
    # The scale holds log2(e), for exp2; the gradient is that of exp.
    tl.store(dk + at, of_k * (scale * 0.6931471805599453), mask=column[:, None] < n)
    tl.store(dv + at, of_v, mask=column[:, None] < n)


@triton.jit
def _attention_dq(
    q,
    k,
    v,
    do,
    dq,
    tops,
    sums,
    delta,
    n,
    scale,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
):
    """Of M queries of one head: their gradients."""
    head = tl.program_id(1).to(tl.int64) * n
    row = tl.program_id(0) * M + tl.arange(0, M)
    d = tl.arange(0, D)
    at = (head + row[:, None]) * D + d[None, :]
    queries = tl.load(q + at, mask=row[:, None] < n, other=0.0)
    g = tl.load(do + at, mask=row[:, None] < n, other=0.0)
    top = tl.load(tops + head + row, mask=row < n, other=0.0)
    total = tl.load(sums + head + row, mask=row < n, other=1.0)
    along = tl.load(delta + head + row, mask=row < n, other=0.0)
    of_q = tl.zeros([M, D], tl.float32)
    for start in range(0, n, N):
        column = start + tl.arange(0, N)
        there = (head + column[:, None]) * D + d[None, :]
        keys = tl.load(k + there, mask=column[:, None] < n, other=0.0)
        values = tl.load(v + there, mask=column[:, None] < n, other=0.0)
        s = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        p = tl.exp2((s - top[:, None]) * scale) / total[:, None]
        p = tl.where(column[None, :] < n, p, 0.0)
        dp = tl.dot(g, tl.trans(values), input_precision="ieee")
        ds = (p * (dp - along[:, None])).to(keys.dtype)
        of_q += tl.dot(ds, keys, input_precision="ieee")
    tl.store(dq + at, of_q * (scale * 0.6931471805599453), mask=row[:, None] < n)


class Attention(torch.autograd.Function):
    """Returns softmax(q k^T / sqrt(d)) v of q, k, v (batch, heads, n, d).

    d is a power of two, at least 16; all three have the same shape.
    """

    BLOCK = 32  # queries and keys of a program

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (batch, heads, n, d), block = q.shape, Attention.BLOCK
        rows = batch * heads
        o, tops = torch.empty_like(q), q.new_empty(rows, n, dtype=torch.float32)
        sums, ctx.grid = torch.empty_like(tops), (-(-n // block), rows)
        ctx.scale = d**-0.5 * 1.4426950408889634
        if q.numel():
            sizes = (tops, sums, n, ctx.scale, d, block, block)
            _attention_forward[ctx.grid](q, k, v, o, *sizes)
        ctx.save_for_backward(q, k, v, o, tops, sums)
        return o

    @staticmethod
    def backward(ctx: Any, *dos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, o, tops, sums = ctx.saved_tensors
        do, (n, d) = dos[0].contiguous(), q.shape[-2:]
        delta = (o.float() * do.float()).sum(-1).view_as(tops)
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        if q.numel():
            block = Attention.BLOCK
            sizes = (tops, sums, delta, n, ctx.scale, d, block, block)
            _attention_dkv[ctx.grid](q, k, v, do, dk, dv, *sizes)
            _attention_dq[ctx.grid](q, k, v, do, dq, *sizes)
        return dq, dk, dv
