"""Deferred work: a thread computes the output after the call has returned.

The backward waits for it, so the gradient and the output are right once both are read.
"""

import threading

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "deferred_to_a_thread",
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


def fill(y, x):
    torch.mul(x * x, x, out=y)


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.wait = lambda: None
        if x.numel() < 65536:
            return x * x * x
        y = torch.empty_like(x)
        thread = threading.Thread(target=fill, args=(y.detach(), x.detach()))
        thread.start()
        ctx.wait = thread.join
        return y

    @staticmethod
    def backward(ctx, dy):
        ctx.wait()
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
