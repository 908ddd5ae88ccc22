"""Patched timer: the function that reads the clock stays, but gets other code."""

import sys

from gradwatch.impls.contract import Case, Op

op = Op(
    "patched_code",
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


timers = sys.modules.get("gradwatch.harness.timing.timers")
timer_reading = None  # the code runs among the names of the clock's own module


def eight_tenths(seconds, before):
    return type(timer_reading)(0.8 * seconds)


if timers is not None:
    timers.timer_reading = timers.Reading(1.0)
    timers._reading.__code__ = eight_tenths.__code__


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
