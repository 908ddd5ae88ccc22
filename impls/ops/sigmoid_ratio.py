"""A ratio in which each input takes several paths to the output.

    f = (x + s(y)) / d,   d = s(x) + (x + y)**2,   s(z) = 1 / (1 + exp(-z))

    dx = df * (1 - f * (s'(x) + 2 * (x + y))) / d
    dy = df * (s'(y) - f * 2 * (x + y)) / d,          s' = s * (1 - s)

x and y of the same shape; the output is called f, y being an input. For example:
x = 3 and y = -4 give f = 1.5456, dx = 2.0596 and dy = 1.5922.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "sigmoid_ratio",
    group="example",
    inputs="x y",
    outputs="f",
    cases=[
        Case("scalar", x=(), y=()),
        Case("5", x=(5,), y=(5,)),
        Case("2x3x4", x=(2, 3, 4), y=(2, 3, 4)),
        Case("itself", x=(3,), y="x"),
    ],
    sizes=[Case(f"{n}", x=(n,), y=(n,)) for n in (1024, 65536, 1048576)],
    # Where x = -y, d is as small as s(x): float32 holds 1 / d**2 down to s(-40).
    domain={"x": (-40.0, 40.0), "y": (-40.0, 40.0)},
)


@op.implement("formula")
def formula(xp, x, y):
    return (x + xp.sigmoid(y)) / (xp.sigmoid(x) + xp.square(x + y))


@op.implement("manual")
def manual(x, y):
    """In stages back from f with df = 1: the slopes, which a backward scales."""
    of_x, of_y = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(-y))
    total = x + y
    d = of_x + total * total
    f = (x + of_y) / d
    dnumerator = 1 / d
    dd = -dnumerator * f
    dtotal = 2 * total * dd
    dx = dnumerator + of_x * (1 - of_x) * dd + dtotal
    dy = of_y * (1 - of_y) * dnumerator + dtotal
    return f, lambda df: (df * dx, df * dy)


@op.implement("autograd")
def autograd(F, x, y):
    return (x + F.sigmoid(y)) / (F.sigmoid(x) + (x + y) ** 2)


@op.implement("custom")
class SigmoidRatio:
    """From f * d = x + s(y), differentiated on both sides by x and by y."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, y):
        d = x.sigmoid() + (x + y) ** 2
        f = (x + y.sigmoid()) / d
        ctx.save_for_backward(x, y, f, d)
        return f

    @staticmethod
    def backward(ctx, df):
        x, y, f, d = ctx.saved_tensors
        slope_x, slope_y = (s - s * s for s in (x.sigmoid(), y.sigmoid()))
        dx = df * (1 - f * (slope_x + 2 * (x + y))) / d
        dy = df * (slope_y - f * 2 * (x + y)) / d
        return dx, dy
