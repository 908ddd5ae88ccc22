"""Softmax along one axis.

    y = exp(x) / sum(exp(x))          dx = y * (dy - sum(dy * y))

x of any shape with at least one axis; sums run along `axis`. The largest element is
subtracted first: any constant cancels, so it takes no part in the gradient.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "softmax",
    group="activation",
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
    shift = xp.stop_gradient(xp.max(x, axis=axis, keepdims=True))
    e = xp.exp(x - shift)
    return e / xp.sum(e, axis=axis, keepdims=True)


@op.implement("manual")
def manual(x, *, axis):
    y = x - x.max(axis=axis, keepdims=True)
    np.exp(y, out=y)
    y /= y.sum(axis=axis, keepdims=True)

    def backward(dy):
        dx = dy * y
        dx -= y * dx.sum(axis=axis, keepdims=True)
        return (dx,)

    return y, backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.nn.functional.softmax(x, dim=axis)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, axis):
    return jax.nn.softmax(x, axis=axis)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, axis):
    return paddle.nn.functional.softmax(x, axis)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, axis):
    return tf.nn.softmax(x, axis)


@op.implement("custom")
class Softmax:
    @staticmethod
    def forward(ctx, x, *, axis):
        e = (x - x.amax(axis, keepdim=True)).exp()
        y = e / e.sum(axis, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy, *, axis):
        """The Jacobian diag(y) - y y^T, applied without forming it."""
        (y,) = ctx.saved_tensors
        return y * (dy - (dy * y).sum(axis, keepdim=True))
