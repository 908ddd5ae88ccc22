"""The hyperbolic tangent: it bends towards 1 and -1.

    y = tanh(x)          dx = dy * (1 - y**2) = dy / cosh(x)**2

x of any shape. 1 - y**2 cancels where y is close to 1 or -1: a slope below the unit
roundoff is lost there; computed from x it keeps its digits. Abramowitz and Stegun,
Handbook of Mathematical Functions, 4.5.17 and 4.5.73.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "tanh",
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
    return xp.tanh(x)


@op.implement("manual")
def manual(x):
    """With e = exp(-2|x|), 1 / cosh(x)**2 = 4 e / (1 + e)**2: nothing cancels."""
    e = np.exp(-2 * np.abs(x))
    slope = 4 * e / np.square(1 + e)
    return np.tanh(x), lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.tanh(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.tanh(x)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x):
    return tf.tanh(x)


@op.implement("custom")
class Tanh:
    """From the result, as a product: 1 - y**2 = (1 - y) * (1 + y)."""

    @staticmethod
    def forward(ctx, x):
        y = x.tanh()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * (1 - y) * (1 + y)
