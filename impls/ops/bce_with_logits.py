"""The cross entropy of two classes, from the logit of the first.

    loss = -mean(t * log(s(x)) + (1 - t) * log(s(-x))),   s(x) = 1 / (1 + exp(-x))

    dx = dloss / n * (s(x) - t)

x and target t of one shape, with n elements; targets are between 0 and 1, and need not
be either. As max(x, 0) - x * t + log(1 + exp(-|x|)) nothing overflows, and no logarithm
is taken of a rounded probability. Bishop, Pattern Recognition and Machine Learning,
2006, equations 4.90 and 4.91.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def shares(rng, shape, shapes):
    """Zeros, ones, and shares between them."""
    return np.clip(2 * rng.random(shape) - 0.5, 0, 1)


op = Op(
    "bce_with_logits",
    group="loss",
    inputs="x target",
    outputs="loss",
    constants={"target": shares},
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
    tail = xp.log1p(xp.exp(-xp.abs(x)))
    return xp.mean(xp.maximum(x, 0.0) - x * target + tail)


@op.implement("manual")
def manual(x, target):
    """With e = exp(-|x|), s(x) is 1 / (1 + e) or e / (1 + e)."""
    e = np.exp(-np.abs(x))
    loss = (np.maximum(x, 0) - x * target + np.log1p(e)).mean()
    s = np.maximum(e, x >= 0) / (1 + e)  # the numerator is 1 or e, and e <= 1

    def backward(dloss):
        return ((s - target) * (dloss / x.dtype.type(x.size)),)

    return loss, backward


@op.implement("autograd")
def autograd(F, x, target):
    return F.nn.functional.binary_cross_entropy_with_logits(x, target)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, target):
    return paddle.nn.functional.binary_cross_entropy_with_logits(x, target)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, target):
    return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(target, x))


@op.implement("custom")
class BceWithLogits:
    """The softplus of x less x * t: the slopes are s(x) and t."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        # The small one last: where x is large and t is 1, it is all that is left.
        return (x.clamp(min=0) - x * target + (-x.abs()).exp().log1p()).mean()

    @staticmethod
    def backward(ctx, dloss):
        x, target = ctx.saved_tensors
        share = dloss / x.numel()
        return x.sigmoid() * share - target * share, None
