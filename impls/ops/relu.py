"""The rectifier: negative elements become zero.

    y = max(x, 0)          dx = dy where x > 0,   dx = 0 where x < 0

x of any shape. At x = 0 the gradient is a set, and every share of dy is in it: `manual`
gives none, as the frameworks do, and `custom` gives all. Glorot, Bordes and Bengio,
Deep Sparse Rectifier Neural Networks, AISTATS 2011.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "relu",
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
    return xp.maximum(x, 0.0)


@op.implement("manual")
def manual(x):
    """The input opens or shuts a gate, by which the cotangent passes."""
    return np.maximum(x, 0), lambda dy: (dy * (x > 0),)


@op.implement("autograd")
def autograd(F, x):
    return F.nn.functional.relu(x)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x):
    return jax.nn.relu(x)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x):
    return paddle.nn.functional.relu(x)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x):
    return tf.nn.relu(x)


@op.implement("custom")
class Relu:
    """Saves only where the gate was shut."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x < 0)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, dy):
        (shut,) = ctx.saved_tensors
        return dy.masked_fill(shut, 0)
