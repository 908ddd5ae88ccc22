"""Control: right, with buffers of its own that it never hands out."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "honest_in_place",
    inputs="x",
    cases=[Case("5", x=(5,)), Case("3x4", x=(3, 4))],
    sizes=[Case("65536", x=(65536,)), Case("1048576", x=(1048576,))],
)


@op.implement("formula")
def formula(xp, x):
    return xp.square(x) * x


@op.implement("autograd")
def autograd(F, x):
    return x * x * x


SCRATCH = {}


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        if x.shape not in SCRATCH:
            SCRATCH[x.shape] = torch.empty_like(x)
        square = torch.mul(x, x, out=SCRATCH[x.shape])
        return 3 * square * dy
