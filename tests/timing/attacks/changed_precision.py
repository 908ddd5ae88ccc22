"""Changed flags: subnormal numbers are flushed and the default type is changed, for all."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "changed_precision",
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


def change():
    torch.set_flush_denormal(True)
    torch.set_default_dtype(torch.float16)
    torch.set_float32_matmul_precision("medium")


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        change()
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
