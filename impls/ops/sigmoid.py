"""The logistic function of each element.

    y = s(x) = 1 / (1 + exp(-x))          dx = dy * s(x) * s(-x) = dy * y * (1 - y)

x of any shape. exp is only ever taken of -|x|, so that nothing overflows.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "sigmoid",
    group="activation",
    inputs="x",
    cases=[
        Case("7", x=(7,)),
        Case("1", x=(1,)),
        Case("2x3x4", x=(2, 3, 4)),
        Case("scalar", x=()),
    ],
    sizes=[Case(f"{n}", x=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x):
    return xp.sigmoid(x)


@op.implement("manual")
def manual(x):
    """With e = exp(-|x|), s(x) * s(-x) = e / (1 + e)**2 at either sign of x."""
    e = np.exp(-np.abs(x))
    whole = 1 + e
    y = np.maximum(e, x >= 0) / whole  # the numerator is 1 or e, and e <= 1
    slope = e / whole
    slope /= whole
    return y, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.sigmoid(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.nn.functional.sigmoid(x)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x):
    return tf.sigmoid(x)


@op.implement("custom")
class Sigmoid:
    """The logistic equation y' = y * (1 - y): only the result is saved."""

    @staticmethod
    def forward(ctx, x):
        y = x.sigmoid()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * y * (1 - y)
