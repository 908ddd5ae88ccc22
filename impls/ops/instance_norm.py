"""Normalisation of each channel of each sample by itself.

    h = (x - mean) / sqrt(var + eps)          y = h * weight + bias

    dweight = sum(dy * h),   dbias = sum(dy)          over the samples and positions
    dx = (g - mean(g) - h * mean(g * h)) / sqrt(var + eps),   g = dy * weight

x (B, C, ...), weight and bias (C). Mean and biased var are of the positions of one
channel of one sample, and so are the means in dx: no sample sees another. weight is
one number there, so it may be taken out of the means. Ulyanov, Vedaldi and Lempitsky,
Instance Normalization, arXiv:1607.08022, equation 3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, Unsupported


def case(*x):
    name = "x".join(map(str, x))
    return Case(name, x=x, weight=x[1:2], bias=x[1:2], eps=1e-5)


op = Op(
    "instance_norm",
    group="normalisation",
    inputs="x weight bias",
    cases=[case(2, 3, 5), case(3, 2, 4, 5), case(1, 4, 3)],
    sizes=[case(b, 64, 16, 16) for b in (1, 8, 64)],
)


@op.implement("formula")
def formula(xp, x, weight, bias, *, eps):
    axes, wide = tuple(range(2, x.ndim)), (-1, *[1] * (x.ndim - 2))
    centred = x - xp.mean(x, axis=axes, keepdims=True)
    var = xp.mean(centred * centred, axis=axes, keepdims=True)
    h = centred / xp.sqrt(var + eps)
    return h * xp.reshape(weight, wide) + xp.reshape(bias, wide)


@op.implement("manual")
def manual(x, weight, bias, *, eps):
    """The sums of dy and dy * h over the positions serve dweight, dbias and dx."""
    n = int(np.prod(x.shape[2:]))
    flat = x.reshape(*x.shape[:2], n)
    h = flat - flat.mean(axis=2, keepdims=True)
    rstd = 1 / np.sqrt(np.square(h).mean(axis=2, keepdims=True) + eps)
    h *= rstd

    def backward(dy):
        dy = dy.reshape(h.shape)
        dbias, dweight = dy.sum(axis=2), np.einsum("bcn,bcn->bc", dy, h)
        dx = dy - (dbias / n)[..., None] - h * (dweight / n)[..., None]
        dx *= rstd * weight[:, None]
        return dx.reshape(x.shape), dweight.sum(axis=0), dbias.sum(axis=0)

    return (h * weight[:, None] + bias[:, None]).reshape(x.shape), backward


@op.implement("autograd")
def autograd(F, x, weight, bias, *, eps):
    if x.numel() == x.shape[0] * x.shape[1]:
        raise Unsupported("PyTorch 2.13 refuses to normalise single elements")
    return F.nn.functional.instance_norm(x, weight=weight, bias=bias, eps=eps)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x, weight, bias, *, eps):
    """OneFlow 0.9.0 has it as modules only, one for each number of axes."""
    module = getattr(F.nn, f"InstanceNorm{x.ndim - 2}d")(x.shape[1], eps, affine=False)
    wide = (-1, *[1] * (x.ndim - 2))
    return module(x) * weight.reshape(wide) + bias.reshape(wide)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, weight, bias, *, eps):
    h = jax.nn.standardize(x, axis=tuple(range(2, x.ndim)), epsilon=eps)
    wide = (-1, *[1] * (x.ndim - 2))
    return h * weight.reshape(wide) + bias.reshape(wide)


@op.implement("custom")
class InstanceNorm:
    """Rows of one channel each: a projection, before the weight is spread over them."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, bias, *, eps):
        wide = (-1, *[1] * (x.ndim - 2))
        rows = x.flatten(2)
        centred = rows - rows.mean(2, keepdim=True)
        deviation = ((centred * centred).mean(2, keepdim=True) + eps).sqrt()
        h = centred / deviation
        ctx.save_for_backward(h, deviation, weight)
        return h.reshape(x.shape) * weight.reshape(wide) + bias.reshape(wide)

    @staticmethod
    def backward(ctx, dy, *, eps):
        h, deviation, weight = ctx.saved_tensors
        rows = dy.flatten(2)
        dh = rows * weight.reshape(-1, 1)
        dx = (
            dh - dh.mean(2, keepdim=True) - h * (dh * h).mean(2, keepdim=True)
        ) / deviation
        return dx.reshape(dy.shape), (rows * h).sum((0, 2)), rows.sum((0, 2))
