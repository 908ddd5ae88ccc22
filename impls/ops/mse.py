"""The mean squared error of a prediction.

    loss = mean((x - target)**2)          dx = 2 / n * (x - target) * dloss = -dtarget

x and target of one shape, with n elements: the mean is over all of them, not over the
rows. Bishop, Pattern Recognition and Machine Learning, 2006, equation 3.12.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "mse",
    group="loss",
    inputs="x target",
    outputs="loss",
    cases=[
        Case("7", x=(7,), target=(7,)),
        Case("3x1", x=(3, 1), target=(3, 1)),
        Case("2x3x4", x=(2, 3, 4), target=(2, 3, 4)),
        Case("scalar", x=(), target=()),
    ],
    sizes=[Case(f"{n}", x=(n,), target=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x, target):
    return xp.mean(xp.square(x - target))


@op.implement("manual")
def manual(x, target):
    """As an inner product of the residual with itself."""
    residual = x - target

    def backward(dloss):
        dx = residual * (dloss * 2 / x.dtype.type(x.size))
        return dx, -dx

    return np.vdot(residual, residual) / x.dtype.type(x.size), backward


@op.implement("autograd")
def autograd(F, x, target):
    return F.nn.functional.mse_loss(x, target)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, target):
    return paddle.nn.functional.mse_loss(x, target)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, target):
    return tf.reduce_mean(tf.math.squared_difference(x, target))


@op.implement("custom")
class Mse:
    """From the inputs: the residual is computed again, not kept."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return ((x - target) ** 2).mean()

    @staticmethod
    def backward(ctx, dloss):
        x, target = ctx.saved_tensors
        share = dloss / x.numel()
        return 2 * (x - target) * share, 2 * (target - x) * share
