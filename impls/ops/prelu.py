"""The rectifier whose leak is learned: one weight for each channel, or one for all.

    y = x where x > 0,          dx = dy
    y = weight * x,          dx = weight * dy          elsewhere

    dweight[c] = sum(dy * x)          over the x of channel c that are not above 0

x (B, C, ...) or (n), weight (C) or (1): the channels are axis 1. The weight may be
above 1 or negative, so that max(x, weight * x) is not y. At x = 0 both branches are 0;
dx is that of the lower, as the frameworks have it. He and others, Delving Deep into
Rectifiers, arXiv:1502.01852, equations 1 and 3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, sum_to

op = Op(
    "prelu",
    group="activation",
    inputs="x weight",
    cases=[
        Case("2x3x4-3", x=(2, 3, 4), weight=(3,)),
        Case("4x5-1", x=(4, 5), weight=(1,)),
        Case("4x5-5", x=(4, 5), weight=(5,)),
    ],
    odd=[Case("7-1", x=(7,), weight=(1,))],
    sizes=[Case(f"{n}x64-64", x=(n, 64), weight=(64,)) for n in (16, 1024, 16384)],
)


def wide(weight, x):
    """The weight with one axis for each of x, so that it broadcasts."""
    return weight.reshape((-1, *[1] * (x.ndim - 2)))


@op.implement("formula")
def formula(xp, x, weight):
    return xp.where(x > 0.0, x, wide(weight, x) * x)


@op.implement("manual")
def manual(x, weight):
    """By cases: each branch has its own slopes, in x and in weight."""
    leak = wide(weight, x)
    y = np.where(x > 0, x, leak * x)

    def backward(dy):
        dx = np.where(x > 0, dy, leak * dy)
        dleak = np.where(x > 0, 0, dy * x)
        return dx, sum_to(dleak, leak.shape).reshape(weight.shape)

    return y, backward


@op.implement("autograd")
def autograd(F, x, weight):
    return F.nn.functional.prelu(x, weight)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x, weight):
    """The function that OneFlow 0.9.0's module calls; none is public."""
    return F._C.prelu(x, weight)


@op.implement("custom")
class Prelu:
    """As a sum of the branches, each 0, forward and backward, where the other holds."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        leaked = (wide(weight, x) * x).masked_fill(x > 0, 0)
        return x.clamp(min=0) + leaked

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        leak = wide(weight, x)
        dx = dy.masked_fill(~(x > 0), 0) + (leak * dy).masked_fill(x > 0, 0)
        dweight = sum_to((dy * x).masked_fill(x > 0, 0), leak.shape)
        return dx, dweight.reshape(weight.shape)
