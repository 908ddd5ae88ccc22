"""The exponential linear unit: it bends towards -alpha where x is negative.

    y = x where x > 0,             dx = dy
    y = alpha * (exp(x) - 1),      dx = dy * alpha * exp(x)          elsewhere

x of any shape. exp is only taken of numbers up to 0, so that nothing overflows.
y + alpha equals alpha * exp(x), but it has lost its digits where x is well below zero.
Clevert, Unterthiner and Hochreiter, arXiv:1511.07289, equation 15.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "elu",
    group="activation",
    inputs="x",
    cases=[
        Case("7", x=(7,), alpha=1.0),
        Case("3x1-alpha0.5", x=(3, 1), alpha=0.5),
        Case("2x3x4", x=(2, 3, 4), alpha=1.0),
        Case("scalar", x=(), alpha=1.0),
    ],
    sizes=[Case(f"{n}", x=(n,), alpha=1.0) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x, *, alpha):
    below = xp.where(x > 0.0, -x, x)  # never above zero
    return xp.where(x > 0.0, x, alpha * xp.expm1(below))


@op.implement("manual")
def manual(x, *, alpha):
    """With below = min(x, 0), alpha * exp(below) is the slope of the lower branch."""
    below = np.minimum(x, 0)
    y = np.where(x > 0, x, alpha * np.expm1(below))
    slope = np.where(x > 0, x.dtype.type(1), alpha * np.exp(below))
    return y, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x, *, alpha):
    return F.nn.functional.elu(x, alpha)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, alpha):
    return jax.nn.elu(x, alpha)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, alpha):
    return paddle.nn.functional.elu(x, alpha)


@op.implement("custom")
class Elu:
    """The branches apart: each is zero, forward and backward, where the other holds."""

    @staticmethod
    def forward(ctx, x, *, alpha):
        ctx.save_for_backward(x)
        return x.clamp(min=0) + alpha * x.clamp(max=0).expm1()

    @staticmethod
    def backward(ctx, dy, *, alpha):
        (x,) = ctx.saved_tensors
        bent = dy * alpha * x.clamp(max=0).exp()
        return dy.masked_fill(x <= 0, 0) + bent.masked_fill(x > 0, 0)
