"""A polynomial of two variables, affine in each.

    y = x1 * x2 + 4.3 * x2 + 30          dx1 = dy * x2,   dx2 = dy * (x1 + 4.3)

x1 and x2 of the same shape. For example: x1 = 2 and x2 = 3 give dx1 = 3
and dx2 = 6.3.
"""

from gradwatch.impls.contract import Case, Op

op = Op(
    "affine_pair",
    group="example",
    inputs="x1 x2",
    cases=[
        Case("scalar", x1=(), x2=()),
        Case("5", x1=(5,), x2=(5,)),
        Case("2x3x4", x1=(2, 3, 4), x2=(2, 3, 4)),
        Case("itself", x1=(3,), x2="x1"),
    ],
    sizes=[Case(f"{n}", x1=(n,), x2=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x1, x2):
    return x1 * x2 + 4.3 * x2 + 30.0


@op.implement("manual")
def manual(x1, x2):
    """Factored: y = (x1 + 4.3) * x2 + 30 uses each input once."""
    factor = x1 + 4.3
    y = factor * x2
    y += 30

    def backward(dy):
        return dy * x2, dy * factor

    return y, backward


@op.implement("autograd")
def autograd(F, x1, x2):
    return x1 * x2 + 4.3 * x2 + 30


@op.implement("custom")
class AffinePair:
    """Term by term: x2 is used twice, and the gradients of its two uses are added."""

    @staticmethod
    def forward(ctx, x1, x2):
        ctx.save_for_backward(x1, x2)
        return x1 * x2 + 4.3 * x2 + 30

    @staticmethod
    def backward(ctx, dy):
        x1, x2 = ctx.saved_tensors
        return dy * x2, dy * x1 + dy * 4.3
