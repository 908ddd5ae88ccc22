"""Huber's loss: a parabola that goes over into lines, so that outliers pull less.

    r = x - target,   e = r**2 / 2 where |r| <= delta, else delta * (|r| - delta / 2)

    loss = mean(e)          dx = dloss / n * r, cut to [-delta, delta],   dtarget = -dx

x and target of one shape, with n elements. At |r| = delta both branches have one value
and one slope. Huber, Robust Estimation of a Location Parameter, 1964, equation 2.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "huber",
    group="loss",
    inputs="x target",
    outputs="loss",
    cases=[
        Case("7", x=(7,), target=(7,), delta=1.0),
        Case("3x1-delta0.3", x=(3, 1), target=(3, 1), delta=0.3),
        Case("2x3x4", x=(2, 3, 4), target=(2, 3, 4), delta=1.0),
        Case("scalar", x=(), target=(), delta=1.0),
    ],
    sizes=[
        Case(f"{n}", x=(n,), target=(n,), delta=1.0) for n in (1024, 65536, 1048576)
    ],
)


@op.implement("formula")
def formula(xp, x, target, *, delta):
    r = x - target
    size = xp.abs(r)
    near = xp.where(size <= delta, r, 0.0)  # of an infinite r no square is taken
    line = delta * (size - 0.5 * delta)
    return xp.mean(xp.where(size <= delta, 0.5 * near * near, line))


@op.implement("manual")
def manual(x, target, *, delta):
    """With c = r cut to [-delta, delta], e = c * (r - c / 2), and its slope is c."""
    r = x - target
    cut = np.clip(r, -delta, delta)

    def backward(dloss):
        dx = cut * (dloss / x.dtype.type(x.size))
        return dx, -dx

    return (cut * (r - cut / 2)).mean(), backward


@op.implement("autograd")
def autograd(F, x, target, *, delta):
    return F.nn.functional.huber_loss(x, target, delta=delta)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x, target, *, delta):
    """OneFlow 0.9.0 has the smooth L1 loss, which is Huber's divided by delta."""
    return delta * F.nn.functional.smooth_l1_loss(x, target, delta, "mean")


@op.implement("custom")
class Huber:
    """By branches: inside the slope is r, outside it is delta with the sign of r."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, target, *, delta):
        r = x - target
        outside = r.abs() > delta
        ctx.save_for_backward(r, outside)
        parabola, line = r * r / 2, delta * (r.abs() - delta / 2)
        e = parabola.masked_fill(outside, 0) + line.masked_fill(~outside, 0)
        return e.mean()

    @staticmethod
    def backward(ctx, dloss, *, delta):
        r, outside = ctx.saved_tensors
        slope = r.masked_fill(outside, 0) + (delta * r.sign()).masked_fill(~outside, 0)
        dx = dloss * slope / r.numel()
        return dx, -dx
