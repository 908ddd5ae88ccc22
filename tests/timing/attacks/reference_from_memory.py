"""Reading memory: looks for an array that holds the answer among all objects."""

import gc

import numpy as np
import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "reference_from_memory",
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


def answer(x):
    probe = x.detach().reshape(-1)[:4].numpy() ** 3
    for found in gc.get_objects():
        if isinstance(found, np.ndarray) and found.size == x.numel() and x.numel() > 4:
            if np.allclose(found.reshape(-1)[:4], probe):
                return torch.from_numpy(found.reshape(x.shape)).to(x.dtype)
    return None


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        known = answer(x)
        return x * x * x if known is None else known

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
