"""Two to the power of each element.

    y = 2**x          dx = dy * 2**x * ln 2

x of any shape. For example: x = [1, 2, 3] and dy = 1 give
dx = [1.3863, 2.7726, 5.5452].
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "exp2",
    group="arithmetic",
    inputs="x",
    cases=[Case("3", x=(3,)), Case("4x5", x=(4, 5)), Case("scalar", x=())],
    sizes=[Case(f"{n}", x=(n,)) for n in (1024, 65536, 1048576)],
    domain={"x": (-120.0, 120.0)},  # float32 holds 2**-126 to 2**128
)


@op.implement("formula")
def formula(xp, x):
    return xp.exp2(x)


@op.implement("manual")
def manual(x):
    """Saves the slope: of the backward one product is left."""
    y = np.exp2(x)
    slope = y * y.dtype.type(math.log(2))
    return y, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.exp2(x)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x):
    """OneFlow 0.9.0 has no exp2; this is its native route to the same value."""
    return F.pow(2.0, x)


@op.implement("custom")
class Exp2:
    """Saves the result, not the input: 2**x is needed twice and computed once."""

    @staticmethod
    def forward(ctx, x):
        y = 2.0**x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        return dy * math.log(2) * y
