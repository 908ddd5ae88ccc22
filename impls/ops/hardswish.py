"""The hard swish: silu with a gate of straight lines.

    y = x * g,   g = (x + 3) / 6 cut to [0, 1]

    dx = 0 where x < -3,   dx = dy where x > 3,   dx = dy * (x / 3 + 1 / 2) between

x of any shape. The slope jumps from 0 to -1/2 at x = -3 and from 3/2 to 1 at x = 3;
there every value between the two is a subgradient. Howard and others, Searching for
MobileNetV3, arXiv:1905.02244, section 5.2.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "hardswish",
    group="activation",
    inputs="x",
    cases=[
        Case("7", x=(7,)),
        Case("3x1", x=(3, 1)),
        Case("2x3x4", x=(2, 3, 4)),
        Case("scalar", x=()),
    ],
    sizes=[Case(f"{n}", x=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x):
    return x * xp.clip(x + 3.0, 0.0, 6.0) / 6.0


@op.implement("manual")
def manual(x):
    """The slope by pieces: that of a parabola, between 0 and 1, those of two lines."""
    inside, step = np.abs(x) < 3, np.maximum(np.sign(x), 0)
    slope = np.where(inside, x / 3 + 0.5, step)
    return x * np.clip((x + 3) / 6, 0, 1), lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x):
    return F.nn.functional.hardswish(x)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x):
    return jax.nn.hard_swish(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.nn.functional.hardswish(x)


@op.implement("custom")
class Hardswish:
    """The product rule: the gate, and x / 6 where the gate moves."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x):
        gate = (x + 3).clamp(0, 6) / 6
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, dy):
        x, gate = ctx.saved_tensors
        still = (gate == 0) | (gate == 1)
        return dy * gate + (dy * x / 6).masked_fill(still, 0)
