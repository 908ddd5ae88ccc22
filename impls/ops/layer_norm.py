"""Layer normalisation over the trailing axes, those of weight and bias.

    h = (x - mean(x)) * rstd,   rstd = 1 / sqrt(var(x) + eps)      y = h * weight + bias

    dx = rstd * (g - mean(g) - h * mean(g * h)),   g = dy * weight
    dweight = sum(dy * h),   dbias = sum(dy)        over the leading axes

x (..., normalised shape), weight and bias (normalised shape); means and the biased
variance are taken over the normalised axes. Ba, Kiros, Hinton, arXiv:1607.06450.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, Unsupported


def shapes(*leading, over):
    return {"x": (*leading, *over), "weight": over, "bias": over, "eps": 1e-5}


op = Op(
    "layer_norm",
    group="normalisation",
    inputs="x weight bias",
    cases=[
        Case("3x8", **shapes(3, over=(8,))),
        Case("2x3x4x5-over4x5", **shapes(2, 3, over=(4, 5))),
        Case("6-over6", **shapes(over=(6,))),
    ],
    sizes=[Case(f"{n}x1024", **shapes(n, over=(1024,))) for n in (4, 64, 256, 1024)],
)


@op.implement("formula")
def formula(xp, x, weight, bias, *, eps):
    axes = tuple(range(-weight.ndim, 0))
    centred = x - xp.mean(x, axis=axes, keepdims=True)
    variance = xp.mean(centred * centred, axis=axes, keepdims=True)
    return centred / xp.sqrt(variance + eps) * weight + bias


@op.implement("manual")
def manual(x, weight, bias, *, eps):
    n, rows = weight.size, np.prod(x.shape[: x.ndim - weight.ndim], dtype=int)
    h = x.reshape(rows, n) - x.reshape(rows, n).mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(np.einsum("ri,ri->r", h, h)[:, None] / n + eps)
    h *= rstd
    y = h * weight.reshape(n)
    y += bias.reshape(n)

    def backward(dy):
        dy = dy.reshape(rows, n)
        dweight, dbias = np.einsum("ri,ri->i", dy, h), dy.sum(axis=0)
        dx = dy * weight.reshape(n)
        along_h = np.einsum("ri,ri->r", dx, h)[:, None] / n
        dx -= dx.mean(axis=1, keepdims=True)
        dx -= h * along_h
        dx *= rstd
        return dx.reshape(x.shape), *(d.reshape(weight.shape) for d in (dweight, dbias))

    return y.reshape(x.shape), backward


@op.implement("autograd")
def autograd(F, x, weight, bias, *, eps):
    return F.nn.functional.layer_norm(x, tuple(weight.shape), weight, bias, eps)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, x, weight, bias, *, eps):
    if x.ndim == weight.ndim:
        raise Unsupported("OneFlow 0.9.0's layer_norm wants an axis before the others")
    return autograd(F, x, weight, bias, eps=eps)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, weight, bias, *, eps):
    axes = tuple(range(-weight.ndim, 0))
    return jax.nn.standardize(x, axis=axes, epsilon=eps) * weight + bias


@op.implement("custom")
class LayerNorm:
    """The Jacobian of h is symmetric: it takes away the mean and the part along h."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, bias, *, eps):
        rows = x.unsqueeze(0).flatten(0, -1 - weight.ndim).flatten(1)
        centred = rows - rows.mean(1, keepdim=True)
        deviation = ((centred * centred).mean(1, keepdim=True) + eps).sqrt()
        h = centred / deviation
        ctx.save_for_backward(h, deviation, weight)
        return h.reshape(x.shape) * weight + bias

    @staticmethod
    def backward(ctx, dy, *, eps):
        h, deviation, weight = ctx.saved_tensors
        rows = dy.reshape(h.shape)
        dh = (dy * weight).reshape(h.shape)
        dx = dh - dh.mean(1, keepdim=True) - h * (dh * h).mean(1, keepdim=True)
        dweight, dbias = (rows * h).sum(0), rows.sum(0)
        dx = (dx / deviation).reshape(dy.shape)
        return dx, dweight.reshape(weight.shape), dbias.reshape(weight.shape)
