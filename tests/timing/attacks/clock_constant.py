"""Patched timer: changes what a nanosecond is."""

import sys

from gradwatch.impls.contract import Case, Op

op = Op(
    "clock_constant",
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


def cheat(y):
    timers = sys.modules.get("gradwatch.harness.timing.timers")
    if timers is not None and y.numel() > 100:
        timers.NANOSECOND = 0.72e-9
    return y


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return cheat(x * x * x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return cheat(3 * x * x * dy)
