"""A sum multiplied, with broadcasting.

    y = q * c,   q = a + b

    dq = dy * c,   da = dq,   db = dq,   dc = dy * q      summed over the broadcast axes

a, b and c of shapes that broadcast. For example: a = -2, b = 5 and c = -4 give
y = -12, da = db = -4, dc = 3.
"""

from gradwatch.impls.contract import Case, Op, sum_to

op = Op(
    "sum_product",
    group="example",
    inputs="a b c",
    cases=[
        Case("scalar", a=(), b=(), c=()),
        Case("4", a=(4,), b=(4,), c=(4,)),
        Case("3x4-4-3x1", a=(3, 4), b=(4,), c=(3, 1)),
        Case("3-scalar-2x3", a=(3,), b=(), c=(2, 3)),
        Case("itself", a=(3,), b=(3,), c="a"),
    ],
    sizes=[Case(f"{n}", a=(n,), b=(n,), c=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, a, b, c):
    return (a + b) * c


@op.implement("manual")
def manual(a, b, c):
    """Gate by gate: the mul gate swaps q and c, the add gate passes dq to both."""
    q = a + b

    def backward(dy):
        dq = sum_to(dy * c, q.shape)
        return sum_to(dq, a.shape), sum_to(dq, b.shape), sum_to(dy * q, c.shape)

    return q * c, backward


@op.implement("autograd")
def autograd(F, a, b, c):
    return F.mul(F.add(a, b), c)


@op.implement("custom")
class SumProduct:
    """Input by input: y is linear in each, and its coefficient is the derivative."""

    @staticmethod
    def forward(ctx, a, b, c):
        ctx.save_for_backward(a, b, c)
        return (a + b) * c

    @staticmethod
    def backward(ctx, dy):
        a, b, c = ctx.saved_tensors
        of_a, of_b, of_c = c, c, a + b
        return (
            sum_to(dy * of_a, a.shape),
            sum_to(dy * of_b, b.shape),
            sum_to(dy * of_c, c.shape),
        )
