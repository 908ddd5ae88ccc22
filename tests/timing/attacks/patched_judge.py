"""Patched judge: nothing is unfit to be timed any longer, wherever that rule is imported."""

import sys

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "patched_judge",
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


for module in list(sys.modules.values()):
    if "why_unfit" in getattr(module, "__dict__", {}):
        module.why_unfit = lambda verdicts: ""


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
