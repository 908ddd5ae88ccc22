"""The cross entropy of a softmax with integer targets: the mean over those that count.

    z = x - log(sum(exp(x)))          loss = -sum(q * z) / n

    dx = dloss / n * (exp(z) - q)          0 where the target is ignored

x (N, C, ...), target (N, ...); sums inside z run along the classes, axis 1. q is the
target's one-hot vector, smoothed: (1 - s) times it, and s / C for every class. n counts
targets that are not `ignored`. Bishop, Pattern Recognition and Machine Learning, 2006,
equation 4.109; smoothing: Szegedy and others, arXiv:1512.00567, section 7.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

IGNORED = -100


def targets(rng, shape, shapes):
    """Classes; every third is ignored, but not the first: a mean needs one."""
    drawn = rng.integers(0, max(1, shapes["x"][1]), shape)
    drawn.reshape(-1)[2::3] = IGNORED
    return drawn


def case(n, c, *more, s=0.0):
    name = "x".join(map(str, (n, c, *more))) + ("-smoothed" if s else "")
    return Case(name, x=(n, c, *more), target=(n, *more), s=s, ignored=IGNORED)


op = Op(
    "cross_entropy",
    group="loss",
    inputs="x target",
    outputs="loss",
    constants={"target": targets},
    cases=[case(4, 5), case(7, 3, s=0.1), case(2, 5, 3), case(1, 4)],
    sizes=[case(n, 1024) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, target, *, s, ignored):
    z = x - xp.stop_gradient(xp.max(x, axis=1, keepdims=True))
    z = z - xp.log(xp.sum(xp.exp(z), axis=1, keepdims=True))
    counts = xp.expand_dims(target != ignored, axis=1)
    place = xp.where(counts, xp.expand_dims(target, axis=1), 0)
    likelihood = (1 - s) * xp.take_along_axis(z, place, axis=1)
    likelihood = likelihood + s * xp.mean(z, axis=1, keepdims=True)
    n = xp.sum(xp.astype(counts, x.dtype))
    return -xp.sum(xp.where(counts, likelihood, 0.0)) / n


@op.implement("manual")
def manual(x, target, *, s, ignored):
    """softmax - q, where q is taken off in two parts: at the target, and everywhere."""
    z = x - x.max(axis=1, keepdims=True)
    softmax = np.exp(z)
    total = softmax.sum(axis=1, keepdims=True)
    softmax /= total
    z -= np.log(total)
    counts = np.expand_dims(target != ignored, 1)
    place = np.where(counts, np.expand_dims(target, 1), 0)
    n = counts.sum(dtype=x.dtype)
    likelihood = (1 - s) * np.take_along_axis(z, place, 1)
    likelihood += s * z.mean(axis=1, keepdims=True)
    loss = -np.where(counts, likelihood, 0).sum() / n

    def backward(dloss):
        dx = softmax - x.dtype.type(s / x.shape[1])
        at_target = np.take_along_axis(dx, place, 1) - (1 - s)
        np.put_along_axis(dx, place, at_target, 1)
        dx *= np.where(counts, dloss / n, 0)
        return (dx,)

    return loss, backward


@op.implement("autograd")
def autograd(F, x, target, *, s, ignored):
    return F.nn.functional.cross_entropy(
        x, target, ignore_index=ignored, label_smoothing=s
    )


@op.implement("custom")
class CrossEntropy:
    """As the inner product of q and z: z passes back q - softmax * sum(q)."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, target, *, s, ignored):
        skipped = (target == ignored).unsqueeze(1)
        place = target.unsqueeze(1).masked_fill(skipped, 0)
        z = x - x.amax(1, keepdim=True)
        z = z - z.exp().sum(1, keepdim=True).log()
        one_hot = x.new_zeros(x.shape).scatter_(1, place, 1)
        q = one_hot * (1 - s) + s / x.shape[1]
        n = x.new_ones(skipped.shape).masked_fill(skipped, 0).sum()
        ctx.save_for_backward(z, q, skipped, n)
        return -(q * z).masked_fill(skipped, 0).sum() / n

    @staticmethod
    def backward(ctx, dloss, *, s, ignored):
        z, q, skipped, n = ctx.saved_tensors
        return ((z.exp() - q) * (dloss / n)).masked_fill(skipped, 0), None
