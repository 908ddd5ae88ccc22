"""Mish: x gated by the hyperbolic tangent of its softplus.

    y = x * t,   t = tanh(log(1 + exp(x)))

    dx = dy * (t + x * (1 - t**2) * s),   s = 1 / (1 + exp(-x))

x of any shape. s is the slope of the softplus inside. The slope of y is zero at
x = -1.1924, negative below, and above 1 from x = 0.7958 on. Misra, Mish: A Self
Regularized Non-Monotonic Activation Function, arXiv:1908.08681, equation 1.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "mish",
    group="activation",
    inputs="x",
    cases=[
        Case("7", x=(7,)),
        Case("3x1", x=(3, 1)),
        Case("2x3x4", x=(2, 3, 4)),
        Case("scalar", x=()),
    ],
    sizes=[Case(f"{n}", x=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x):
    softplus = xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))
    return x * xp.tanh(softplus)


@op.implement("manual")
def manual(x):
    """With u = exp(x) and d = u**2 + 2u + 2: t = 1 - 2 / d, t' = 4u (1 + u) / d**2.

    In e = exp(-|x|), which is u or 1 / u, no power overflows and nothing cancels.
    """
    e, above = np.exp(-np.abs(x)), x > 0
    d = np.where(above, 1 + 2 * e + 2 * e * e, e * e + 2 * e + 2)
    t = np.where(above, 1 + 2 * e, e * e + 2 * e) / d
    bent = 4 * e * (1 + e) * np.where(above, e, 1) / d / d
    slope = t + x * bent
    return x * t, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.nn.functional.mish(x)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x):
    return jax.nn.mish(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.nn.functional.mish(x)


@op.implement("custom")
class Mish:
    """The chain rule, one function after the other."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x):
        t = (x.clamp(min=0) + (-x.abs()).exp().log1p()).tanh()
        ctx.save_for_backward(x, t)
        return x * t

    @staticmethod
    def backward(ctx, dy):
        x, t = ctx.saved_tensors
        dsoftplus = dy * x * (1 - t * t)
        return dy * t + dsoftplus * x.sigmoid()
