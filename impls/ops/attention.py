"""Scaled dot product attention.

    s = q @ k^T / sqrt(D)          p = softmax(s)          y = p @ v

    dv = p^T @ dy,   dp = dy @ v^T,   ds = p * (dp - sum(dp * p))
    dq = ds @ k / sqrt(D),   dk = ds^T @ q / sqrt(D)

q (..., L, D), k (..., S, D), v (..., S, E); sums run along the keys. If `causal`, query
i sees the keys 0 to i alone: of the others, p and ds are zero. Vaswani and others,
arXiv:1706.03762; the backward: Dao and others, arXiv:2205.14135, appendix B.2.
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(*leading, queries, keys, width=4, causal=False):
    last = {"q": (queries, width), "k": (keys, width), "v": (keys, width - 1)}
    name = "x".join(map(str, (*leading, queries, keys))) + ("-causal" if causal else "")
    shapes = {name: (*leading, *shape) for name, shape in last.items()}
    return Case(name, **shapes, causal=causal)


op = Op(
    "attention",
    group="attention",
    inputs="q k v",
    cases=[case(2, 2, queries=5, keys=6), case(1, 2, queries=5, keys=5, causal=True)],
    sizes=[
        case(1, 4, queries=n, keys=n, width=64, causal=True) for n in (16, 128, 512)
    ],
    domain=dict.fromkeys("qk", (-4.0, 4.0)),  # one score far above all others: ds = 0
)


@op.implement("formula")
def formula(xp, q, k, v, *, causal):
    s = xp.matmul(q, xp.matrix_transpose(k)) / math.sqrt(q.shape[-1])
    if causal:
        s = xp.where(xp.tril(xp.ones_like(s)) > 0.0, s, -math.inf)
    e = xp.exp(s - xp.stop_gradient(xp.max(s, axis=-1, keepdims=True)))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


@op.implement("manual")
def manual(q, k, v, *, causal):
    """Two matrix products around a softmax, backwards: p @ v, softmax, q @ k^T."""
    scale = 1 / math.sqrt(q.shape[-1])
    p = q @ np.swapaxes(k, -1, -2)
    p *= scale
    hidden = ~np.tri(*p.shape[-2:], dtype=bool) & causal
    p[..., hidden] = -math.inf
    p -= p.max(axis=-1, keepdims=True)
    np.exp(p, out=p)
    p /= p.sum(axis=-1, keepdims=True)

    def backward(dy):
        ds = dy @ np.swapaxes(v, -1, -2)
        ds -= np.einsum("...ls,...ls->...l", ds, p)[..., None]
        ds *= p
        ds *= scale
        ds[..., hidden] = 0  # not even nan
        dk, dv = (np.swapaxes(a, -1, -2) @ b for a, b in ((ds, q), (p, dy)))
        return ds @ k, dk, dv

    return p @ v, backward


@op.implement("autograd")
def autograd(F, q, k, v, *, causal):
    return F.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


op.lacks("autograd", framework="torch", before="2.0", reason="PyTorch has no attention")
op.lacks("autograd", framework="oneflow", reason="OneFlow 0.9.0 has no attention")


@op.implement("custom")
class Attention:
    """Keeps no p, only each row's maximum and sum: p is computed again from q and k."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, q, k, v, *, causal):
        s, _ = scores(q, k, causal)
        largest = s.amax(-1, keepdim=True)
        e = (s - largest).exp()
        total = e.sum(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, largest, total)
        return (e / total).matmul(v)

    @staticmethod
    def backward(ctx, dy, *, causal):
        q, k, v, largest, total = ctx.saved_tensors
        s, hidden = scores(q, k, causal)
        p = (s - largest).exp() / total
        dp = dy.matmul(v.transpose(-1, -2))
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        ds = ds.masked_fill(hidden, 0)
        return ds @ k, ds.transpose(-1, -2) @ q, p.transpose(-1, -2) @ dy


def scores(q, k, causal):
    s = q.matmul(k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    hidden = s.new_ones(s.shape).tril() < causal
    return s.masked_fill(hidden, -math.inf), hidden
