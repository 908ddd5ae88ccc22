"""The negative log likelihood of integer targets, as a weighted mean.

    loss = -sum(w * picked) / n,   n = sum(w)

    dx = -w / n * dloss          at the target, 0 elsewhere

x (N, C, ...) holds logarithms of probabilities, target (N, ...) classes; `picked` is x
at the target, w the weight of the target's class, 0 where the target is `ignored`. The
mean divides by the sum of the weights, not by their number. Bishop, Pattern Recognition
and Machine Learning, 2006, equation 4.108.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

IGNORED = -100


def targets(rng, shape, shapes):
    """Classes; every third is ignored, but not the first: a mean needs one."""
    drawn = rng.integers(0, max(1, shapes["x"][1]), shape)
    drawn.reshape(-1)[2::3] = IGNORED
    return drawn


def weights(rng, shape, shapes):
    """The weights of the classes: eighths, which every precision holds exactly."""
    return rng.integers(1, 16, shape) / 8


def case(n, c, *more):
    name = "x".join(map(str, (n, c, *more)))
    return Case(name, x=(n, c, *more), target=(n, *more), weight=(c,), ignored=IGNORED)


op = Op(
    "nll",
    group="loss",
    inputs="x target weight",
    outputs="loss",
    constants={"target": targets, "weight": weights},
    cases=[case(4, 5), case(2, 5, 3), case(7, 3), case(1, 4)],
    sizes=[case(n, 1024) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, target, weight, *, ignored):
    counts = target != ignored
    place = xp.where(counts, target, 0)
    picked = xp.take_along_axis(x, xp.expand_dims(place, axis=1), axis=1)
    w = xp.where(counts, xp.take(weight, place, axis=0), 0.0)
    terms = xp.where(counts, w * xp.reshape(picked, tuple(target.shape)), 0.0)
    return -xp.sum(terms) / xp.sum(w)


@op.implement("manual")
def manual(x, target, weight, *, ignored):
    """Only the picked elements count: their slopes go where these were read."""
    counts = target != ignored
    place = np.where(counts, target, 0)
    at, w = np.expand_dims(place, 1), np.where(counts, weight[place], 0)
    n = w.sum(dtype=x.dtype)
    picked = np.take_along_axis(x, at, 1)[:, 0]
    loss = -np.where(counts, w * picked, 0).sum() / n

    def backward(dloss):
        dx, slope = np.zeros_like(x), np.where(counts, w * (-dloss / n), 0)
        np.put_along_axis(dx, at, np.expand_dims(slope, 1), 1)
        return (dx,)

    return loss, backward


@op.implement("autograd")
def autograd(F, x, target, weight, *, ignored):
    return F.nn.functional.nll_loss(x, target, weight, ignore_index=ignored)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x, target, weight, *, ignored):
    """OneFlow 0.9.0 has it as a module only."""
    return F.nn.NLLLoss(weight, ignored, "mean")(x, target)


@op.implement("custom")
class Nll:
    """As an inner product of x with weighted one-hot vectors, which are the slope."""

    @staticmethod
    def forward(ctx, x, target, weight, *, ignored):
        skipped = (target == ignored).unsqueeze(1)
        place = target.unsqueeze(1).masked_fill(skipped, 0)
        one_hot = x.new_zeros(x.shape).scatter_(1, place, 1).masked_fill(skipped, 0)
        w = one_hot * weight.reshape(-1, *[1] * (x.ndim - 2))
        ctx.save_for_backward(w)
        return -(w * x).masked_fill(w == 0, 0).sum() / w.sum()

    @staticmethod
    def backward(ctx, dloss, *, ignored):
        (w,) = ctx.saved_tensors
        return -(w * (dloss / w.sum())).masked_fill(w == 0, 0), None, None
