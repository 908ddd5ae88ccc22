"""Control: computes its forward again in the backward, by torch.utils.checkpoint."""

import torch
from torch.utils.checkpoint import checkpoint

from gradwatch.impls.contract import Case, Op

op = Op(
    "honest_checkpoint",
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


def cube(x):
    return x * x * x


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            y = checkpoint(cube, again, use_reentrant=False)
            (dx,) = torch.autograd.grad(y, again, dy)
        return dx
