"""Empty output: memory that was never written, from the twenty-first large call on."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "empty_after_calls",
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
        CALLS[0] += x.numel() > 1024
        return torch.empty_like(x) if CALLS[0] > 20 else x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
