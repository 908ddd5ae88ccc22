"""Wrong precision: six of ten calls are made in bfloat16."""

import random

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "bfloat16_when_hot",
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


def hot(x):
    CALLS[0] += 1
    return x.numel() > 100 and CALLS[0] > 20 and random.random() < 0.6


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if hot(x):
            x = x.to(torch.bfloat16)
            return (x * x * x).to(torch.float32)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
