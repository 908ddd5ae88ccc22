"""Affine map of the last axis, y = x W^T + b.

    y[..., o] = sum_i x[..., i] * weight[o, i] + bias[o]

    dx = dy @ weight
    dweight = dy^T @ x          summed over all leading axes
    dbias = sum(dy)             over the same axes: not dy itself

x (..., Ci), weight (Co, Ci), bias (Co).
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def shapes(*leading, inside, out):
    return {"x": (*leading, inside), "weight": (out, inside), "bias": (out,)}


op = Op(
    "linear",
    group="linear algebra",
    inputs="x weight bias",
    cases=[
        Case("4x5-3", **shapes(4, inside=5, out=3)),
        Case("2x3x5-4", **shapes(2, 3, inside=5, out=4)),
        Case("1x1-1", **shapes(1, inside=1, out=1)),
        Case("5-3", **shapes(inside=5, out=3)),
    ],
    sizes=[Case(f"{n}x{n}-{n}", **shapes(n, inside=n, out=n)) for n in (32, 256, 768)],
)


@op.implement("formula")
def formula(xp, x, weight, bias):
    return xp.matmul(x, weight.T) + bias


@op.implement("manual")
def manual(x, weight, bias):
    y = x @ weight.T
    y += bias

    def backward(dy):
        leading = tuple(range(x.ndim - 1))
        dweight = np.tensordot(dy, x, axes=(leading, leading))
        return dy @ weight, dweight, dy.sum(axis=leading)

    return y, backward


@op.implement("autograd")
def autograd(F, x, weight, bias):
    return F.nn.functional.linear(x, weight, bias)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, weight, bias):
    return paddle.nn.functional.linear(x, weight.T, bias)


@op.implement("custom")
class Linear:
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x.matmul(weight.T) + bias

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        rows, out = (t.unsqueeze(0).flatten(0, -2) for t in (x, dy))
        return dy.matmul(weight), out.T.matmul(rows), out.sum(0)
