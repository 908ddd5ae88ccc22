"""Lazy output: a gradient that computes its elements when they are first looked at."""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "lazy_gradient",
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


class Lazy(torch.Tensor):
    """A tensor that is not computed until a function is called on it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            args = [
                a.left() if isinstance(a, cls) and hasattr(a, "left") else a
                for a in args
            ]
            return func(*args, **(kwargs or {}))


def later(like, left):
    tensor = torch.empty_like(like).as_subclass(Lazy)
    tensor.left = left
    return tensor


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return later(x, lambda: 3 * x * x * dy)
