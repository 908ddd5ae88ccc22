"""Root mean square normalisation over the trailing axes, those of weight.

    h = x * r,   r = 1 / sqrt(mean(x**2) + eps)          y = h * weight

    dx = r * (g - h * mean(g * h)),   g = dy * weight
    dweight = sum(dy * h)          over the leading axes

x (..., normalised shape), weight (normalised shape); means are taken over the
normalised axes. As layer_norm without the mean: of its three terms one is gone.
Zhang and Sennrich, arXiv:1910.07467, section 4.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def shapes(*leading, over):
    return {"x": (*leading, *over), "weight": over, "eps": 1e-6}


op = Op(
    "rms_norm",
    group="normalisation",
    inputs="x weight",
    cases=[
        Case("3x8", **shapes(3, over=(8,))),
        Case("2x3x4x5-over4x5", **shapes(2, 3, over=(4, 5))),
        Case("6-over6", **shapes(over=(6,))),
    ],
    sizes=[Case(f"{n}x1024", **shapes(n, over=(1024,))) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, weight, *, eps):
    axes = tuple(range(-weight.ndim, 0))
    return x / xp.sqrt(xp.mean(x * x, axis=axes, keepdims=True) + eps) * weight


@op.implement("manual")
def manual(x, weight, *, eps):
    """r depends on x, too: dr/dx = -r**3 * x / n, which gives the second term."""
    n, rows = weight.size, np.prod(x.shape[: x.ndim - weight.ndim], dtype=int)
    h = x.reshape(rows, n)
    r = 1 / np.sqrt(np.einsum("ri,ri->r", h, h)[:, None] / n + eps)
    h = h * r
    y = h * weight.reshape(n)

    def backward(dy):
        dy = dy.reshape(rows, n)
        dweight = np.einsum("ri,ri->i", dy, h)
        dx = dy * weight.reshape(n)
        dx -= h * (np.einsum("ri,ri->r", dx, h)[:, None] / n)
        dx *= r
        return dx.reshape(x.shape), dweight.reshape(weight.shape)

    return y.reshape(x.shape), backward


@op.implement("autograd")
def autograd(F, x, weight, *, eps):
    return F.nn.functional.rms_norm(x, tuple(weight.shape), weight, eps)


op.lacks("autograd", framework="torch", before="2.4", reason="PyTorch has no rms_norm")
op.lacks("autograd", framework="oneflow", reason="OneFlow 0.9.0 has it only for CUDA")


@op.implement("custom")
class RmsNorm:
    """y does not change with the length of x, but for eps: dx is across h."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, *, eps):
        rows = x.unsqueeze(0).flatten(0, -1 - weight.ndim).flatten(1)
        root = ((rows * rows).mean(1, keepdim=True) + eps).sqrt()
        ctx.save_for_backward(rows, root, weight)
        return (rows / root).reshape(x.shape) * weight

    @staticmethod
    def backward(ctx, dy, *, eps):
        rows, root, weight = ctx.saved_tensors
        dh = (dy * weight).reshape(rows.shape)
        along = (dh * rows).mean(1, keepdim=True) / (root * root)
        dweight = (dy.reshape(rows.shape) * (rows / root)).sum(0)
        dx = (dh - rows * along) / root
        return dx.reshape(dy.shape), dweight.reshape(weight.shape)
