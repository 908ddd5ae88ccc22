"""The mean along one axis, along several, or of all elements.

    y = sum(x) / n          dx = dy / n

x of any shape; n is the number of elements in one mean, the product of the lengths of
its axes, and not the number of all elements of x. y lacks these axes, unless `keepdims`
keeps them with length 1; dy is copied back along them. Higham, Accuracy and Stability
of Numerical Algorithms, 2nd edition, section 4.2.
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "mean",
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
    return xp.mean(x, axis=axis, keepdims=keepdims)


@op.implement("manual")
def manual(x, *, axis, keepdims):
    """dy is divided while it is small, and then copied."""
    y = x.mean(axis=axis, keepdims=keepdims)

    def backward(dy):
        n = x.size / max(1, y.size)
        share = dy / x.dtype.type(n)
        kept = share if keepdims else np.expand_dims(share, axis)
        return (np.broadcast_to(kept, x.shape).copy(),)

    return y, backward


@op.implement("autograd")
def autograd(F, x, *, axis, keepdims):
    return F.mean(x, dim=axis, keepdim=keepdims)


@op.implement("custom")
class Mean:
    """As an inner product with the weights 1 / n, whose gradient they are."""

    @staticmethod
    def forward(ctx, x, *, axis, keepdims):
        axes = {i % x.ndim for i in (axis if isinstance(axis, tuple) else (axis,))}
        kept = [1 if i in axes else n for i, n in enumerate(x.shape)]
        n = math.prod(x.shape[i] for i in axes)
        ctx.save_for_backward(x.new_ones(x.shape) / n, x.new_ones(kept))
        return x.sum(axis, keepdims) / n

    @staticmethod
    def backward(ctx, dy, *, axis, keepdims):
        weights, kept = ctx.saved_tensors
        return dy.reshape(kept.shape) * weights
