"""Patched timer: an event that shows a tenth of what it has measured."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "patched_event",
    inputs="x",
    cases=[Case("5", x=(5,)), Case("3x4", x=(3, 4))],
    sizes=[Case("65536", x=(65536,)), Case("16777216", x=(16777216,))],
)


@op.implement("formula")
def formula(xp, x):
    return xp.square(x) * x


@op.implement("autograd")
def autograd(F, x):
    return x * x * x


def shorter(start, end, elapsed=torch.cuda.Event.elapsed_time):
    return elapsed(start, end) / 10


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        torch.cuda.Event.elapsed_time = shorter
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
