"""The product along one axis.

    y = prod(x)          dx[i] = dy * prod(x[j]) over all j but i

x of any shape with at least one axis, which y lacks. dy * y / x is not the gradient
where an x is zero: with one zero, its own slope is the product of all others; with two,
every slope is zero. Products from the left and from the right need no division.
Griewank and Walther, Evaluating Derivatives, 2nd edition, section 3.3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "prod",
    group="reduction",
    inputs="x",
    cases=[
        Case("4x5", x=(4, 5), axis=-1),
        Case("5x4-axis0", x=(5, 4), axis=0),
        Case("2x3x4-axis1", x=(2, 3, 4), axis=1),
        Case("6", x=(6,), axis=0),
    ],
    sizes=[Case(f"{n}x64", x=(n, 64), axis=-1) for n in (4, 256, 4096)],
)


@op.implement("formula")
def formula(xp, x, *, axis):
    return xp.prod(x, axis=axis)


def before(x):
    """The product of the elements before each one, along the last axis."""
    y = np.ones_like(x)
    np.cumprod(x[..., :-1], axis=-1, out=y[..., 1:])
    return y


@op.implement("manual")
def manual(x, *, axis):
    """The product before each element times that behind it, times its cotangent."""
    last = np.moveaxis(x, axis, -1)
    others = before(last) * before(last[..., ::-1])[..., ::-1]

    def backward(dy):
        return (np.moveaxis(dy[..., None] * others, -1, axis),)

    return x.prod(axis=axis), backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.prod(x, dim=axis)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, axis):
    return paddle.prod(x, axis)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, axis):
    return tf.reduce_prod(x, axis)


@op.implement("custom")
class Prod:
    """All others at once: a matrix of copies with ones on its diagonal."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, *, axis):
        last = x.transpose(axis, -1)
        n = last.shape[-1]
        copies = last.unsqueeze(-2).expand(*last.shape[:-1], n, n)
        own = x.new_ones((n, n)).tril().triu() > 0
        ctx.save_for_backward(copies.masked_fill(own, 1).prod(-1))
        return x.prod(axis)

    @staticmethod
    def backward(ctx, dy, *, axis):
        (others,) = ctx.saved_tensors
        return (others * dy.unsqueeze(axis).transpose(axis, -1)).transpose(axis, -1)
