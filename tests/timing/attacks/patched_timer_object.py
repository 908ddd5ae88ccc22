"""Patched timer: finds the clock's timers among all objects and slows them down."""

import gc
import time

from gradwatch.impls.contract import Case, Op

op = Op(
    "patched_timer_object",
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


def slow_down():
    for found in gc.get_objects():
        if type(found).__name__ == "HostTimer":
            object.__setattr__(found, "now", lambda: time.perf_counter_ns() // 10)


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        slow_down()
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
