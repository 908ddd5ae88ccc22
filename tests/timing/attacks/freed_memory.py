"""Reading memory: empty memory where a right result has just been freed, and often still lies."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "freed_memory",
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


CALLS = [0]


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        CALLS[0] += 1
        if CALLS[0] % 8 == 1:
            return x * x * x
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
