"""Normalisation of groups of channels, each sample by itself.

    h = (x - mean) / sqrt(var + eps)          y = h * weight + bias

    dweight = sum(dy * h),   dbias = sum(dy)          over the samples and positions
    dx = (g - mean(g) - h * mean(g * h)) / sqrt(var + eps),   g = dy * weight

x (B, C, ...), weight and bias (C): one for each channel. But mean and biased var are of
a group of C / groups channels, and so are the means in dx. Wu and He, Group
Normalization, arXiv:1803.08494, equations 1 to 6.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, Unsupported


def case(*x, groups):
    name = "x".join(map(str, x)) + f"-{groups}"
    return Case(name, x=x, weight=x[1:2], bias=x[1:2], groups=groups, eps=1e-5)


op = Op(
    "group_norm",
    group="normalisation",
    inputs="x weight bias",
    cases=[
        case(2, 6, 5, groups=3),
        case(3, 4, 2, 5, groups=1),
        case(2, 4, 3, groups=4),
    ],
    sizes=[case(b, 64, 16, 16, groups=32) for b in (1, 8, 64)],
)


@op.implement("formula")
def formula(xp, x, weight, bias, *, groups, eps):
    n = x.shape[1] // groups * int(np.prod(x.shape[2:]))
    inside = xp.reshape(x, (x.shape[0], groups, n))
    centred = inside - xp.mean(inside, axis=-1, keepdims=True)
    var = xp.mean(centred * centred, axis=-1, keepdims=True)
    h = xp.reshape(centred / xp.sqrt(var + eps), tuple(x.shape))
    wide = (-1, *[1] * (x.ndim - 2))
    return h * xp.reshape(weight, wide) + xp.reshape(bias, wide)


@op.implement("manual")
def manual(x, weight, bias, *, groups, eps):
    """Weight and bias by channel, (B, C, n); statistics by group, (B, G, C/G, n)."""
    b, c = x.shape[:2]
    channels = (b, c, np.prod(x.shape[2:], dtype=int))
    split = (b, groups, c // groups, channels[2])
    h = x.reshape(split) - x.reshape(split).mean(axis=(2, 3), keepdims=True)
    rstd = 1 / np.sqrt(np.square(h).mean(axis=(2, 3), keepdims=True) + eps)
    h *= rstd
    y = h.reshape(channels) * weight[:, None] + bias[:, None]

    def backward(dy):
        dy = dy.reshape(channels)
        dweight = np.einsum("bcn,bcn->c", dy, h.reshape(channels))
        dx = (dy * weight[:, None]).reshape(split)
        along_h = (dx * h).mean(axis=(2, 3), keepdims=True)
        dx -= dx.mean(axis=(2, 3), keepdims=True)
        dx -= h * along_h
        dx *= rstd
        return dx.reshape(x.shape), dweight, dy.sum(axis=(0, 2))

    return y.reshape(x.shape), backward


@op.implement("autograd")
def autograd(F, x, weight, bias, *, groups, eps):
    if x.numel() == groups:
        raise Unsupported("PyTorch 2.13 refuses to normalise single elements")
    return F.nn.functional.group_norm(x, groups, weight, bias, eps)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x, weight, bias, *, groups, eps):
    """OneFlow 0.9.0 has it as a module only."""
    module = F.nn.GroupNorm(groups, x.shape[1], eps, affine=False).to(x.device)
    wide = (-1, *[1] * (x.ndim - 2))
    return module(x) * weight.reshape(wide) + bias.reshape(wide)


@op.implement("custom")
class GroupNorm:
    """Rows of one group each; the channels come back only for weight and bias."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, bias, *, groups, eps):
        wide, b = (-1, *[1] * (x.ndim - 2)), x.shape[0]
        rows = x.flatten(1).reshape(b * groups, x[:1].numel() // groups)
        centred = rows - rows.mean(1, keepdim=True)
        deviation = ((centred * centred).mean(1, keepdim=True) + eps).sqrt()
        h = centred / deviation
        ctx.save_for_backward(h, deviation, weight)
        return h.reshape(x.shape) * weight.reshape(wide) + bias.reshape(wide)

    @staticmethod
    def backward(ctx, dy, *, groups, eps):
        h, deviation, weight = ctx.saved_tensors
        others = (0, *range(2, dy.ndim))
        dh = (dy * weight.reshape(-1, *[1] * (dy.ndim - 2))).reshape(h.shape)
        dx = dh - dh.mean(1, keepdim=True) - h * (dh * h).mean(1, keepdim=True)
        dweight = (dy * h.reshape(dy.shape)).sum(others)
        return (dx / deviation).reshape(dy.shape), dweight, dy.sum(others)
