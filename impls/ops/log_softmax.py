"""The logarithm of softmax along one axis.

    y = x - log(sum(exp(x)))          dx = dy - exp(y) * sum(dy)

x of any shape with at least one axis; sums run along `axis`. The largest element is
subtracted first: any constant cancels, so it takes no part in the gradient.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "log_softmax",
    group="activation",
    inputs="x",
    cases=[
        Case("4x5", x=(4, 5), axis=-1),
        Case("5x4-axis0", x=(5, 4), axis=0),
        Case("2x3x4-axis1", x=(2, 3, 4), axis=1),
        Case("3x1", x=(3, 1), axis=-1),
        Case("6", x=(6,), axis=0),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), axis=-1) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, *, axis):
    z = x - xp.stop_gradient(xp.max(x, axis=axis, keepdims=True))
    return z - xp.log(xp.sum(xp.exp(z), axis=axis, keepdims=True))


@op.implement("manual")
def manual(x, *, axis):
    """The derivative of log(sum(exp(x))) is softmax, which the forward passes by."""
    y = x - x.max(axis=axis, keepdims=True)
    softmax = np.exp(y)
    total = softmax.sum(axis=axis, keepdims=True)
    softmax /= total
    y -= np.log(total)

    def backward(dy):
        total = np.einsum("...i->...", np.moveaxis(dy, axis, -1))  # half of sum's time
        dx = softmax * -np.expand_dims(total, axis)
        dx += dy
        return (dx,)

    return y, backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.nn.functional.log_softmax(x, dim=axis)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, axis):
    return jax.nn.log_softmax(x, axis=axis)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, axis):
    return paddle.nn.functional.log_softmax(x, axis)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, axis):
    return tf.nn.log_softmax(x, axis)


@op.implement("custom")
class LogSoftmax:
    """From the parts: z = x - max passes back dy, the log of the sum e / sum(e)."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, *, axis):
        z = x - x.amax(axis, keepdim=True)
        e = z.exp()
        total = e.sum(axis, keepdim=True)
        ctx.save_for_backward(e, total)
        return z - total.log()

    @staticmethod
    def backward(ctx, dy, *, axis):
        e, total = ctx.saved_tensors
        return dy - e * (dy.sum(axis, keepdim=True) / total)
