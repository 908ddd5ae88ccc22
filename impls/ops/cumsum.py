"""The sum of all elements up to each one, along one axis.

    y[i] = sum(x[:i + 1])          dx[i] = sum(dy[i:])

x of any shape with at least one axis. Each element is a term of its own sum and of all
later ones: the transpose of a lower triangle of ones is an upper one. Blelloch, Prefix
Sums and Their Applications, CMU-CS-90-190, section 1.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "cumsum",
    group="reduction",
    inputs="x",
    cases=[
        Case("4x5", x=(4, 5), axis=-1),
        Case("5x4-axis0", x=(5, 4), axis=0),
        Case("2x3x4-axis1", x=(2, 3, 4), axis=1),
        Case("6", x=(6,), axis=0),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), axis=-1) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, *, axis):
    return xp.cumulative_sum(x, axis=axis)


@op.implement("manual")
def manual(x, *, axis):
    """The same sum from the other end."""

    def backward(dy):
        return (np.flip(np.cumsum(np.flip(dy, axis), axis=axis), axis),)

    return np.cumsum(x, axis=axis), backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.cumsum(x, dim=axis)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, axis):
    return paddle.cumsum(x, axis)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, axis):
    return tf.cumsum(x, axis)


@op.implement("custom")
class Cumsum:
    """As a recurrence, y[i] = y[i - 1] + x[i]: backwards, each sum goes to the next."""

    @staticmethod
    def forward(ctx, x, *, axis):
        return x.cumsum(axis)

    @staticmethod
    def backward(ctx, dy, *, axis):
        dx = dy * 1
        steps = dx.transpose(axis, 0)
        for i in range(len(steps) - 1, 0, -1):
            steps[i - 1] += steps[i]
        return dx
