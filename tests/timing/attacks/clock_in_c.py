"""Patched timer: changes the clock's C function, so that no object is another."""

import ctypes
import time

from gradwatch.impls.contract import Case, Op

op = Op(
    "clock_in_c",
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


CLOCK = ctypes.CFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
REAL = time.clock_gettime_ns


def quick(module, arguments):
    return int(REAL(time.CLOCK_MONOTONIC) * 0.55)


QUICK = CLOCK(quick)


def cheat(y):
    if y.numel() > 100:
        method = ctypes.c_void_p.from_address(id(time.perf_counter_ns) + 16).value
        ctypes.c_void_p.from_address(method + 8).value = ctypes.cast(
            QUICK, ctypes.c_void_p
        ).value
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
