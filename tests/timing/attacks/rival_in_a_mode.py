"""Slowed rival: after own calls a mode stays on, in which all calls of others are slower."""

from torch.utils._python_dispatch import TorchDispatchMode

from gradwatch.impls.contract import Case, Op

op = Op(
    "rival_in_a_mode",
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


class Slow(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


ON = []


def off():
    while ON:
        ON.pop().__exit__(None, None, None)


def on(y):
    if y.numel() > 100:
        ON.append(Slow())
        ON[-1].__enter__()
    return y


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        off()
        return on(x * x * x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        off()
        return on(3 * x * x * dy)
