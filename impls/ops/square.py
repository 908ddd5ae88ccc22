"""The square of each element.

    y = x**2          dx = dy * 2 * x

x of any shape. For example: x = 2 gives dx = 4; x = [1, 2, 3] gives dx = 2x.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "square",
    group="arithmetic",
    inputs="x",
    cases=[
        Case("3", x=(3,)),
        Case("1", x=(1,)),
        Case("2x3x4", x=(2, 3, 4)),
        Case("scalar", x=()),
    ],
    sizes=[Case(f"{n}", x=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x):
    return xp.square(x)


@op.implement("manual")
def manual(x):
    """The product rule on x * x: each of the two uses of x has the slope x."""
    slope = x + x
    return np.square(x), lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.square(x)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x):
    return tf.square(x)


@op.implement("custom")
class Square:
    """The power rule."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return dy * 2 * x
