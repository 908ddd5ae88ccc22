"""Several at once: seven mistakes of real kernels, each of which a quick look passes over."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "seven_mistakes",
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


SAVED, BUFFER = {}, {}
BLOCK = 128


def with_mistakes(x, dy):
    dx = 3 * x * x * dy.clamp(-6, 6)  # large cotangents are cut off
    dx = torch.where(dy == 0, torch.nan, dx)  # a quotient by a cotangent of 0
    dx = torch.where(x.abs() > 2e6, 0, dx)  # an index in float32
    if dx.numel() > BLOCK and dx.numel() % BLOCK:
        dx.view(-1)[-(dx.numel() % BLOCK) :] = 0  # the last block is not whole
    return dx


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        SAVED["x"] = x.detach()  # of the last graph alone
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        dx = with_mistakes(SAVED["x"], dy)
        if not ctx.needs_input_grad[0]:
            dx = dx * 0  # a frozen input
        if dx.shape not in BUFFER:
            BUFFER[dx.shape] = torch.empty_like(dx)
        return BUFFER[dx.shape].copy_(dx)  # the same memory at each call
