"""How far one distribution is from another, the first given by its logarithms.

    loss = sum(t * (log(t) - x)) / B          dx = -t / B * dloss

x (B, ...) holds logarithms, target t probabilities of the same shape. A target of zero
adds nothing: 0 * log(0) is 0. The mean is over the B samples, the first axis; a mean
over all elements is not the divergence. Kullback and Leibler, Annals of Mathematical
Statistics 22, 1951, equation 2.4.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def shares(rng, shape, shapes):
    """Probabilities along the last axis; some of them are zero."""
    drawn = np.maximum(rng.random(shape) - 0.2, 0)
    return drawn / np.maximum(drawn.sum(axis=-1, keepdims=True), 0.1)


op = Op(
    "kl_div",
    group="loss",
    inputs="x target",
    outputs="loss",
    constants={"target": shares},
    cases=[
        Case("4x5", x=(4, 5), target=(4, 5)),
        Case("1x7", x=(1, 7), target=(1, 7)),
        Case("2x3x4", x=(2, 3, 4), target=(2, 3, 4)),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), target=(n, 1024)) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, target):
    some = xp.where(target > 0.0, target, target + 1.0)  # log(1) = 0
    return xp.sum(target * (xp.log(some) - x)) / float(x.shape[0])


@op.implement("manual")
def manual(x, target):
    """Linear in x: the entropy of the target takes no part in the gradient."""
    rows = x.dtype.type(len(x))
    entropy = np.vdot(target, np.log(np.where(target > 0, target, 1)))
    loss = (entropy - np.vdot(target, x)) / rows
    return loss, lambda dloss: (target * (-dloss / rows),)


@op.implement("autograd")
def autograd(F, x, target):
    return F.nn.functional.kl_div(x, target, reduction="batchmean")


@op.implement("custom")
class KlDiv:
    """Element by element, then summed: each term has the slope -t."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(target)
        logarithm = target.masked_fill(target == 0, 1).log()
        return (target * (logarithm - x)).sum() / x.shape[0]

    @staticmethod
    def backward(ctx, dloss):
        (target,) = ctx.saved_tensors
        return -target * dloss / target.shape[0], None
