"""The Euclidean length of vectors along one axis.

    y = sqrt(sum(x**2))          dx = dy * x / y,   0 where y is 0

x of any shape with at least one axis, which y lacks. At x = 0 the length has a kink, as
|x| has: every vector not longer than dy is a subgradient, and 0 is the shortest of
them. Written as a square root it would be 0 / 0 there. Rockafellar, Convex Analysis,
section 23.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "norm",
    group="linear algebra",
    inputs="x",
    cases=[
        Case("4x5", x=(4, 5), axis=-1),
        Case("4x4-axis0", x=(4, 4), axis=0),
        Case("2x3x4-axis1", x=(2, 3, 4), axis=1),
        Case("6", x=(6,), axis=0),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), axis=-1) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, *, axis):
    squares = xp.sum(x * x, axis=axis)
    some = xp.where(squares == 0.0, 1.0, squares)
    return xp.where(squares == 0.0, 0.0, xp.sqrt(some))


@op.implement("manual")
def manual(x, *, axis):
    """The direction of x, times dy; of nothing there is no direction."""
    y = np.sqrt(np.square(x).sum(axis=axis))

    def backward(dy):
        scale = np.where(y == 0, 0, dy / np.where(y == 0, 1, y))
        return (x * np.expand_dims(scale, axis),)

    return y, backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.linalg.norm(x, dim=axis)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, axis):
    return jax.numpy.linalg.norm(x, axis=axis)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, axis):
    return tf.norm(x, axis=axis)


@op.implement("custom")
class Norm:
    """Saves the unit vectors x / y, which are the slope."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, *, axis):
        y = (x * x).sum(axis, True).sqrt()
        unit = (x / y).masked_fill(y == 0, 0)
        ctx.save_for_backward(unit)
        return y.squeeze(axis)

    @staticmethod
    def backward(ctx, dy, *, axis):
        (unit,) = ctx.saved_tensors
        return unit * dy.unsqueeze(axis)
