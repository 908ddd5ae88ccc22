"""One of two tensors, element by element, as a mask says; with broadcasting.

    y = a where mask, else b          da = dy where mask,   db = dy where not mask

a, b and mask of shapes that broadcast; gradients are summed over the broadcast axes.
The gradient of an element that is not chosen is exactly zero, even where it is infinite
or nan. That of mask * a + (1 - mask) * b would be 0 * inf = nan there.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, sum_to


def booleans(rng, shape, shapes):
    return rng.random(shape) < 0.5


op = Op(
    "where",
    group="indexing",
    inputs="a b mask",
    constants={"mask": booleans},
    cases=[
        Case("7", a=(7,), b=(7,), mask=(7,)),
        Case("3x4-4-3x1", a=(3, 4), b=(4,), mask=(3, 1)),
        Case("scalar-2x3-3", a=(), b=(2, 3), mask=(3,)),
        Case("3x1-1x4-3x4", a=(3, 1), b=(1, 4), mask=(3, 4)),
    ],
    sizes=[Case(f"{n}", a=(n,), b=(n,), mask=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, a, b, mask):
    return xp.where(mask, a, b)


@op.implement("manual")
def manual(a, b, mask):
    """A switch, which sends the cotangent back on the way that the number came."""

    def backward(dy):
        da, db = np.where(mask, dy, 0), np.where(mask, 0, dy)
        return sum_to(da, a.shape), sum_to(db, b.shape)

    return np.where(mask, a, b), backward


@op.implement("autograd")
def autograd(F, a, b, mask):
    return F.where(mask, a, b)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, a, b, mask):
    return tf.where(mask, a, b)


@op.implement("custom")
class Where:
    """As two fillings: db is the rest of dy that da leaves."""

    @staticmethod
    def forward(ctx, a, b, mask):
        shape = np.broadcast_shapes(*(tuple(t.shape) for t in (a, b, mask)))
        whole = mask.expand(shape)
        ctx.save_for_backward(a, b, whole)
        from_a, from_b = a.expand(shape), b.expand(shape)
        return from_a.masked_fill(~whole, 0) + from_b.masked_fill(whole, 0)

    @staticmethod
    def backward(ctx, dy):
        a, b, mask = ctx.saved_tensors
        da, db = dy.masked_fill(~mask, 0), dy.masked_fill(mask, 0)
        return sum_to(da, a.shape), sum_to(db, b.shape), None
