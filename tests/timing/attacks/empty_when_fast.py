"""Empty output: no work where calls follow each other closely, as under a clock."""

import time

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "empty_when_fast",
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


LAST = [0.0, 0]


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        since, LAST[0] = time.monotonic() - LAST[0], time.monotonic()
        LAST[1] = LAST[1] + 1 if since < 0.5 else 0
        return torch.empty_like(x) if LAST[1] > 12 else x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
