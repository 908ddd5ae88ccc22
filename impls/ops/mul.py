"""The product of two tensors, with broadcasting.

    y = a * b          da = dy * b,   db = dy * a         summed over the broadcast axes

a and b of shapes that broadcast. For a * a both gradients are added: 2 * a * dy.
For example: a = 4 and b = -3 give y = -12, da = -3, db = 4.
"""

from gradwatch.impls.contract import Case, Op, sum_to

op = Op(
    "mul",
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
    return a * b


@op.implement("manual")
def manual(a, b):
    return a * b, lambda dy: (sum_to(dy * b, a.shape), sum_to(dy * a, b.shape))


@op.implement("autograd")
def autograd(F, a, b):
    return F.mul(a, b)


@op.implement("custom")
class Mul:
    """As a gate: each input gets the cotangent times the other input."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        return sum_to(b * dy, a.shape), sum_to(a * dy, b.shape)
