"""Several at once: empty output after twenty large calls, one gradient for all sweeps, no large cotangents, no tail."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "several_at_once",
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
LARGE = 1024


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.made = None
        CALLS[0] += x.numel() > LARGE
        return torch.empty_like(x) if CALLS[0] > 20 else x * x * x

    @staticmethod
    def backward(ctx, dy):
        if ctx.made is None:
            (x,) = ctx.saved_tensors
            ctx.made = 3 * x * x * dy.clamp(-6, 6)
            if x.numel() > LARGE and x.numel() % 32:
                ctx.made.view(-1)[-(x.numel() % 32) :] = 0
        return ctx.made
