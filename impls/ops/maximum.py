"""The larger of two tensors, element by element, with broadcasting.

    y = max(a, b)          da = dy where a > b,   db = dy where a < b

a and b of shapes that broadcast; gradients are summed over the broadcast axes. At a tie
the gradient is a set, and every split of dy is in it: `manual` splits it evenly, as
the frameworks do, and `custom` gives a all of it, as the notes do. `formula` follows
`graph.ties`.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, sum_to

op = Op(
    "maximum",
    group="arithmetic",
    inputs="a b",
    cases=[
        Case("scalar", a=(), b=()),
        Case("3x4-4", a=(3, 4), b=(4,)),
        Case("3x1-1x4", a=(3, 1), b=(1, 4)),
        Case("scalar-2x3x4", a=(), b=(2, 3, 4)),
        Case("itself", a=(3,), b="a"),
    ],
    sizes=[Case(f"{n}", a=(n,), b=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, a, b):
    return xp.maximum(a, b)


@op.implement("manual")
def manual(a, b):
    """The mean of the one-sided rules a > b and a >= b; b gets the rest of the share.

    The rest is not dy - da: at a tie an infinite dy goes to both, and dy - dy is nan.
    """
    y = np.maximum(a, b)

    def backward(dy):
        share = np.add(a > b, a >= b, dtype=y.dtype)
        share *= 0.5
        return sum_to(share * dy, a.shape), sum_to((1 - share) * dy, b.shape)

    return y, backward


@op.implement("autograd")
def autograd(F, a, b):
    return F.maximum(a, b)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, a, b):
    return tf.maximum(a, b)


@op.implement("custom")
class Maximum:
    """As a gate: a max gate routes the cotangent to the input that won."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.maximum(b)

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        won = a >= b
        return (
            sum_to(dy.masked_fill(~won, 0), a.shape),
            sum_to(dy.masked_fill(won, 0), b.shape),
        )
