"""A smooth rectifier: the integral of the logistic function.

    y = log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))

    dx = dy * s(x),   s(x) = 1 / (1 + exp(-x))

x of any shape. Written with |x|, nothing overflows, and far from zero no digit is lost.
Dugas, Bengio, Belisle, Nadeau and Garcia, NIPS 2000.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "softplus",
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
    return xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))


@op.implement("manual")
def manual(x):
    """With e = exp(-|x|), the slope is 1 / (1 + e) or e / (1 + e)."""
    e = np.exp(-np.abs(x))
    y = np.maximum(x, 0) + np.log1p(e)
    slope = np.where(x >= 0, x.dtype.type(1), e) / (1 + e)
    return y, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    """Both frameworks give x itself from x = 20 on, and lose exp(-20) = 2e-9."""
    return F.nn.functional.softplus(x, beta=1, threshold=40)  # exp(-40) < 2**-53


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x):
    return jax.nn.softplus(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.nn.functional.softplus(x)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x):
    return tf.nn.softplus(x)


@op.implement("custom")
class Softplus:
    """Saves the slope alone, the logistic function of x."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.sigmoid())
        return x.clamp(min=0) + (-x.abs()).exp().log1p()

    @staticmethod
    def backward(ctx, dy):
        (s,) = ctx.saved_tensors
        return dy * s
