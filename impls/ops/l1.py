"""The mean absolute error of a prediction.

    loss = mean(abs(x - target))          dx = dloss / n * sign(x - target) = -dtarget

x and target of one shape, with n elements: the mean is over all of them. Where both
are equal, every slope between -1 and 1 is a subgradient; the frameworks and these
pages take 0. Boyd and Vandenberghe, Convex Optimization, section 6.1.2.
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "l1",
    group="loss",
    inputs="x target",
    outputs="loss",
    cases=[
        Case("7", x=(7,), target=(7,)),
        Case("3x1", x=(3, 1), target=(3, 1)),
        Case("2x3x4", x=(2, 3, 4), target=(2, 3, 4)),
        Case("scalar", x=(), target=()),
    ],
    sizes=[Case(f"{n}", x=(n,), target=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x, target):
    return xp.mean(xp.abs(x - target))


@op.implement("manual")
def manual(x, target):
    """The size of the residual has its sign as slope."""
    r = x - target

    def backward(dloss):
        dx = np.sign(r) * (dloss / x.dtype.type(x.size))
        return dx, -dx

    return np.abs(r).mean(), backward


@op.implement("autograd")
def autograd(F, x, target):
    return F.nn.functional.l1_loss(x, target)


@op.implement("custom")
class L1:
    """By comparison: the larger of the two is pulled down, the smaller up."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x - target)
        return (x.maximum(target) - x.minimum(target)).mean()

    @staticmethod
    def backward(ctx, dloss):
        (r,) = ctx.saved_tensors
        share = (r.new_ones(r.shape) / r.numel() * dloss).masked_fill(r != r, math.nan)
        dx = share.masked_fill(r <= 0, 0) - share.masked_fill(r >= 0, 0)
        return dx, -dx
