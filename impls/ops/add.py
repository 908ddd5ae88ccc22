"""The sum of two tensors, with broadcasting.

    y = a + b          da = dy,   db = dy          summed over the broadcast axes

a and b of shapes that broadcast. Both gradients are the cotangent itself.
"""

from gradwatch.impls.contract import Case, Op, sum_to

op = Op(
    "add",
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
    return a + b


@op.implement("manual")
def manual(a, b):
    return a + b, lambda dy: (sum_to(dy, a.shape), sum_to(dy, b.shape))


@op.implement("autograd")
def autograd(F, a, b):
    return F.add(a, b)


@op.implement("custom")
class Add:
    """A linear map: its backward asks the inputs for their shapes, not their values."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a + b

    @staticmethod
    def backward(ctx, dy):
        return tuple(sum_to(dy, tensor.shape) for tensor in ctx.saved_tensors)
