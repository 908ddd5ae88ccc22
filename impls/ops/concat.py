"""Two tensors one behind the other, along one axis.

    y = [a, b]          da = dy[:n],   db = dy[n:]

a and b have the same lengths but along `axis`, where a has n. The gradient of joining
is cutting; a tensor that is joined to itself gets both parts, added.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "concat",
    group="indexing",
    inputs="a b",
    cases=[
        Case("3-5", a=(3,), b=(5,), axis=0),
        Case("3x4-2x4-axis0", a=(3, 4), b=(2, 4), axis=0),
        Case("2x3x4-2x1x4-axis1", a=(2, 3, 4), b=(2, 1, 4), axis=1),
        Case("3x4-3x6-last", a=(3, 4), b=(3, 6), axis=-1),
        Case("itself", a=(3, 2), b="a", axis=-1),
    ],
    sizes=[Case(f"{n}x1024", a=(n, 1024), b=(n, 512), axis=-1) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, a, b, *, axis):
    return xp.concat((a, b), axis=axis)


@op.implement("manual")
def manual(a, b, *, axis):
    """Cut where they were joined."""
    return (
        np.concatenate((a, b), axis=axis),
        lambda dy: tuple(np.split(dy, [a.shape[axis]], axis=axis)),
    )


@op.implement("autograd")
def autograd(F, a, b, *, axis):
    return F.cat((a, b), dim=axis)


@op.implement("custom")
class Concat:
    """Each is written into its part of the result, and read back from there."""

    @staticmethod
    def forward(ctx, a, b, *, axis):
        n, m = a.shape[axis], b.shape[axis]
        shape = list(a.shape)
        shape[axis] = n + m
        y = a.new_zeros(tuple(shape))
        y.transpose(axis, 0)[:n] = a.transpose(axis, 0)
        y.transpose(axis, 0)[n:] = b.transpose(axis, 0)
        ctx.save_for_backward(a, b)
        return y

    @staticmethod
    def backward(ctx, dy, *, axis):
        a, b = ctx.saved_tensors
        n = a.shape[axis]
        return dy.narrow(axis, 0, n), dy.narrow(axis, n, b.shape[axis])
