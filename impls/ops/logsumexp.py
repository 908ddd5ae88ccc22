"""The logarithm of a sum of exponentials, along one axis: a smooth maximum.

    y = log(sum(exp(x)))          dx = dy * exp(x - y)

x of any shape with at least one axis, which y lacks. The largest element is subtracted
before exp and added after log, unless it is infinite. The slopes are the softmax: they
add up to 1. Boyd and Vandenberghe, Convex Optimization, 2004, section 3.1.5.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "logsumexp",
    group="reduction",
    inputs="x",
    cases=[
        Case("4x5", x=(4, 5), axis=-1),
        Case("5x4-axis0", x=(5, 4), axis=0),
        Case("2x3x4-axis1", x=(2, 3, 4), axis=1),
        Case("6", x=(6,), axis=0),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), axis=-1) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, *, axis):
    return xp.logsumexp(x, axis=axis)


@op.implement("manual")
def manual(x, *, axis):
    """By the parts: the slope of the logarithm is 1 / sum, those of the terms exp."""
    largest = x.max(axis=axis, keepdims=True)
    largest[np.isinf(largest)] = 0
    e = np.exp(x - largest)
    total = e.sum(axis=axis, keepdims=True)
    y = np.log(total) + largest

    def backward(dy):
        return (e * (np.expand_dims(dy, axis) / total),)

    return y.squeeze(axis), backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.logsumexp(x, dim=axis)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, axis):
    return paddle.logsumexp(x, axis)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, axis):
    return tf.reduce_logsumexp(x, axis)


@op.implement("custom")
class Logsumexp:
    """Keeps the softmax: dy is shared out by it."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, *, axis):
        largest = x.amax(axis, keepdim=True)
        largest = largest.masked_fill(largest.abs() == np.inf, 0)
        e = (x - largest).exp()
        total = e.sum(axis, keepdim=True)
        ctx.save_for_backward(e / total)
        return (largest + total.log()).squeeze(axis)

    @staticmethod
    def backward(ctx, dy, *, axis):
        (softmax,) = ctx.saved_tensors
        return softmax * dy.unsqueeze(axis)
