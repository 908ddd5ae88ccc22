"""The sigmoid linear unit, also called swish: x gated by its own logistic function.

    y = x * s(x),   s(x) = 1 / (1 + exp(-x))

    dx = dy * (s(x) + x * s(x) * s(-x)) = dy * s(x) * (1 + x * (1 - s(x)))

x of any shape. The slope is zero at x = -1.2785, and above 1 from x = 1.2785 on until
far out: it is not monotonic. Elfwing, Uchibe and Doya, arXiv:1702.03118.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "silu",
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
    return x * xp.sigmoid(x)


@op.implement("manual")
def manual(x):
    """With e = exp(-|x|), s(x) * s(-x) = e / (1 + e)**2 at either sign of x."""
    e = np.exp(-np.abs(x))
    whole = 1 + e
    s = np.maximum(e, x >= 0) / whole  # the numerator is 1 or e, and e <= 1
    slope = s + x * (e / whole / whole)
    return x * s, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.nn.functional.silu(x)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x):
    return jax.nn.silu(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.nn.functional.silu(x)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x):
    return tf.nn.silu(x)


@op.implement("custom")
class Silu:
    """The product rule, from the saved input: s is computed again, not kept."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return dy * s * (1 + x * (1 - s))
