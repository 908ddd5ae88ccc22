"""Batch normalisation of each channel; Ioffe and Szegedy, arXiv:1502.03167.

    h = (x - mean) / sqrt(var + eps)          y = h * weight + bias
    dweight = sum(dy * h)                     dbias = sum(dy)
    dx = weight / sqrt(var + eps) * (dy - mean(dy) - h * mean(dy * h))

x (B, C, ...), all else (C); sums and means are over the n elements of a channel, var is
biased. Training moves the running values by `momentum` towards mean and the unbiased
var * n / (n - 1); evaluation uses them, as constants: of dx only dy remains.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(*x, training=True):
    name = "x".join(map(str, x)) + ("" if training else "-evaluation")
    channels = dict.fromkeys(["weight", "bias", "running_mean", "running_var"], x[1:2])
    return Case(name, x=x, **channels, eps=1e-5, momentum=0.1, training=training)


op = Op(
    "batch_norm",
    group="normalisation",
    inputs="x weight bias running_mean running_var",
    state="running_mean running_var",
    cases=[case(*x) for x in [(6, 3), (2, 4, 3), (2, 1, 4, 5), (2, 3, 2, 2, 2)]]
    + [case(2, 4, 3, training=False)],
    sizes=[case(b, 64, 16, 16) for b in (1, 8, 64)],
    domain={"running_var": (0.0, np.inf)},
)


@op.implement("formula")
def formula(xp, x, weight, bias, *state, eps, momentum, training):
    axes, wide = (0, *range(2, x.ndim)), (1, x.shape[1], *[1] * (x.ndim - 2))
    n = int(np.prod(x.shape)) // x.shape[1]  # no channel is no input
    mean, var = (xp.mean(x, axis=axes), None) if training else state
    centred = x - xp.reshape(mean, wide)
    if training:
        var = xp.mean(xp.square(centred), axis=axes)
        towards = zip(state, (mean, var * (n / (n - 1))), strict=True)
        state = [(1 - momentum) * old + momentum * new for old, new in towards]
    scale = weight / xp.sqrt(var + eps)
    return centred * xp.reshape(scale, wide) + xp.reshape(bias, wide), *state


@op.implement("manual")
def manual(x, weight, bias, running_mean, running_var, *, eps, momentum, training):
    """As a projection: dy loses its mean and its part along h; the sums serve twice."""
    flat = x.reshape(*x.shape[:2], np.prod(x.shape[2:], dtype=int))
    n = x.size // x.shape[1]
    mean = flat.mean(axis=(0, 2)) if training else running_mean
    h = flat - mean[:, None]
    var = np.einsum("bci,bci->c", h, h) / n if training else running_var
    h *= (rstd := 1 / np.sqrt(var + eps))[:, None]
    if training:
        running_mean[:] = (1 - momentum) * running_mean + momentum * mean
        running_var[:] = (1 - momentum) * running_var + momentum * n / (n - 1) * var

    def backward(dy):
        dy = dy.reshape(h.shape)
        dweight, dbias = np.einsum("bci,bci->c", dy, h), np.einsum("bci->c", dy)
        dx = h * (dweight / -n)[:, None] - (dbias / n)[:, None] if training else 0
        dx += dy
        dx *= (weight * rstd)[:, None]
        return dx.reshape(x.shape), dweight, dbias

    return (h * weight[:, None] + bias[:, None]).reshape(x.shape), backward


@op.implement("autograd")
def autograd(F, x, weight, bias, *state, eps, momentum, training):
    return F.nn.functional.batch_norm(x, *state, weight, bias, training, momentum, eps)


@op.implement("custom")
class BatchNorm:
    """As y = (x - mean) * weight / deviation + bias: by x, by mean, by deviation."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, bias, mean, var, *, eps, momentum, training):
        x, axes = x.transpose(1, -1), tuple(range(x.ndim - 1))  # channels last
        if training:
            n, running_mean, running_var = x.numel() // len(weight), mean, var
            mean, var = x.mean(axes), (x - x.mean(axes)).square().mean(axes)
            running_mean.mul_(1 - momentum).add_(momentum * mean)
            running_var.mul_(1 - momentum).add_(momentum * n / (n - 1) * var)
        deviation = (var + eps).sqrt()
        ctx.save_for_backward(x - mean, weight, deviation)
        return ((x - mean) * (weight / deviation) + bias).transpose(1, -1)

    @staticmethod
    def backward(ctx, dy, *, eps, momentum, training):
        centred, weight, deviation = ctx.saved_tensors
        dy, axes = dy.transpose(1, -1), tuple(range(dy.ndim - 1))
        dx, dweight = dy * (weight / deviation), (dy * centred).sum(axes) / deviation
        if training:
            dx = dx - dx.mean(axes) - centred * (dx * centred).mean(axes) / deviation**2
        return dx.transpose(1, -1), dweight, dy.sum(axes), None, None
