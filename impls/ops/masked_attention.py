"""Scaled dot product attention under a mask: each query sees the keys that it may.

    s = q @ k^T / sqrt(D), -inf where hidden          p = softmax(s)          y = p @ v

    dv = p^T @ dy,   dp = dy @ v^T,   ds = p * (dp - sum(dp * p))
    dq = ds @ k / sqrt(D),   dk = ds^T @ q / sqrt(D)

q (..., L, D), k (..., S, D), v (..., S, E), mask (L, S) of booleans: true where a query
sees a key, at least once in each row. Sums run along the keys. Hidden keys have p = 0
and so ds = 0. Vaswani and others, arXiv:1706.03762, section 3.2.3.
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op


def visible(rng, shape, shapes):
    """Half of the keys; all of them in a row that would have none."""
    mask = rng.random(shape) < 0.5
    return mask | ~mask.any(axis=1, keepdims=True)


def case(*leading, queries, keys, width=4):
    last = {"q": (queries, width), "k": (keys, width), "v": (keys, width - 1)}
    name = "x".join(map(str, (*leading, queries, keys)))
    shapes = {name: (*leading, *shape) for name, shape in last.items()}
    return Case(name, **shapes, mask=(queries, keys))


op = Op(
    "masked_attention",
    group="attention",
    inputs="q k v mask",
    constants={"mask": visible},
    cases=[
        case(2, 2, queries=5, keys=6),
        case(1, 3, queries=5, keys=5),
    ],
    sizes=[case(1, 4, queries=n, keys=n, width=64) for n in (16, 128, 512)],
    domain=dict.fromkeys("qk", (-4.0, 4.0)),  # one score far above all others: ds = 0
)


@op.implement("formula")
def formula(xp, q, k, v, mask):
    s = xp.matmul(q, xp.matrix_transpose(k)) / math.sqrt(q.shape[-1])
    s = xp.where(mask, s, -math.inf)
    e = xp.exp(s - xp.stop_gradient(xp.max(s, axis=-1, keepdims=True)))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


@op.implement("manual")
def manual(q, k, v, mask):
    """As unscaled attention of q / sqrt(D), so that dq is scaled once, at the end."""
    scale = 1 / math.sqrt(q.shape[-1])
    q = q * scale
    s = np.where(mask, q @ np.swapaxes(k, -1, -2), -math.inf)
    p = np.exp(s - s.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)

    def backward(dy):
        ds = p * (dy @ np.swapaxes(v, -1, -2))
        ds -= p * ds.sum(axis=-1, keepdims=True)
        ds = np.where(mask, ds, 0)  # a query's nan is not for keys that it does not see
        dk, dv = np.swapaxes(ds, -1, -2) @ q, np.swapaxes(p, -1, -2) @ dy
        return ds @ k * scale, dk, dv

    return p @ v, backward


@op.implement("autograd")
def autograd(F, q, k, v, mask):
    return F.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


op.lacks("autograd", framework="torch", before="2.0", reason="PyTorch has no attention")
op.lacks("autograd", framework="oneflow", reason="OneFlow 0.9.0 has no attention")


@op.implement("custom")
class MaskedAttention:
    """p is zero at hidden keys, but ds is set to zero there: p * dp may be nan."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, q, k, v, mask):
        s = q.matmul(k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
        e = (s - s.masked_fill(~mask, -math.inf).amax(-1, keepdim=True)).exp()
        e = e.masked_fill(~mask, 0)
        p = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, mask, p)
        return p.matmul(v)

    @staticmethod
    def backward(ctx, dy):
        q, k, v, mask, p = ctx.saved_tensors
        dp = dy.matmul(v.transpose(-1, -2))
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        ds = ds.masked_fill(~mask, 0) / math.sqrt(q.shape[-1])
        dk = ds.transpose(-1, -2).matmul(q)
        return ds.matmul(k), dk, p.transpose(-1, -2).matmul(dy), None
