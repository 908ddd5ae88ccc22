"""The rectifier that leaks: negative elements are scaled down, not cut off.

    y = max(x, slope * x)          dx = dy where x > 0,   dx = slope * dy where x < 0

x of any shape; `slope` is between 0 and 1. At x = 0 every value between the two is a
subgradient: `manual` takes the lower, as the frameworks do, `custom` the upper. Maas,
Hannun and Ng, Rectifier Nonlinearities Improve Neural Network Acoustic Models, 2013.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "leaky_relu",
    group="activation",
    inputs="x",
    cases=[
        Case("7", x=(7,), slope=0.01),
        Case("3x1-slope0.3", x=(3, 1), slope=0.3),
        Case("2x3x4", x=(2, 3, 4), slope=0.01),
        Case("scalar", x=(), slope=0.01),
    ],
    sizes=[Case(f"{n}", x=(n,), slope=0.01) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x, *, slope):
    return xp.maximum(x, slope * x)


@op.implement("manual")
def manual(x, *, slope):
    """By cases: an element not above zero is scaled, forward and backward."""
    y = np.where(x > 0, x, slope * x)
    return y, lambda dy: (np.where(x > 0, dy, slope * dy),)


@op.implement("autograd")
def autograd(F, x, *, slope):
    return F.nn.functional.leaky_relu(x, slope)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, slope):
    return jax.nn.leaky_relu(x, slope)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, slope):
    return paddle.nn.functional.leaky_relu(x, slope)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, slope):
    return tf.nn.leaky_relu(x, slope)


@op.implement("custom")
class LeakyRelu:
    """As max(x, 0) + slope * min(x, 0): each part passes back its own share."""

    @staticmethod
    def forward(ctx, x, *, slope):
        ctx.save_for_backward(x < 0)
        return x.clamp(min=0) + slope * x.clamp(max=0)

    @staticmethod
    def backward(ctx, dy, *, slope):
        (negative,) = ctx.saved_tensors
        kept, leaked = dy.masked_fill(negative, 0), dy.masked_fill(~negative, 0)
        return kept + slope * leaked
