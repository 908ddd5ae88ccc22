"""The sum along one axis, along several, or of all elements.

    y = sum(x)          dx = dy * 1

x of any shape. y lacks the axes that are summed, unless `keepdims` keeps them with
length 1. dy is copied along them, so it needs them back first, each in its place: in a
square x a missing axis is no error, but a transposition. Harris and others, Array
programming with NumPy, 2020, on broadcasting; its transpose is a sum.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "sum",
    group="reduction",
    inputs="x",
    cases=[
        Case("4x4", x=(4, 4), axis=-1, keepdims=False),
        Case("5x4-axis0-kept", x=(5, 4), axis=0, keepdims=True),
        Case("2x3x4-axes0and2", x=(2, 3, 4), axis=(0, 2), keepdims=False),
        Case("3x4-all", x=(3, 4), axis=(0, 1), keepdims=False),
    ],
    sizes=[
        Case(f"{n}x1024", x=(n, 1024), axis=-1, keepdims=False) for n in (4, 64, 1024)
    ],
)


@op.implement("formula")
def formula(xp, x, *, axis, keepdims):
    return xp.sum(x, axis=axis, keepdims=keepdims)


@op.implement("manual")
def manual(x, *, axis, keepdims):
    """Each element is a term of one sum, with the factor 1."""

    def backward(dy):
        kept = dy if keepdims else np.expand_dims(dy, axis)
        return (np.broadcast_to(kept, x.shape).copy(),)

    return x.sum(axis=axis, keepdims=keepdims), backward


@op.implement("autograd")
def autograd(F, x, *, axis, keepdims):
    return F.sum(x, dim=axis, keepdim=keepdims)


@op.implement("custom")
class Sum:
    """As an inner product with ones, whose gradient they are."""

    @staticmethod
    def forward(ctx, x, *, axis, keepdims):
        ctx.save_for_backward(x)
        return x.sum(axis, keepdims)

    @staticmethod
    def backward(ctx, dy, *, axis, keepdims):
        (x,) = ctx.saved_tensors
        axes = {i % x.ndim for i in (axis if isinstance(axis, tuple) else (axis,))}
        kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
        return dy.reshape(kept) * x.new_ones(x.shape)
