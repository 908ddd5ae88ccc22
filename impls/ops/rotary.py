"""Rotary position embedding: pairs of numbers are turned by an angle of their position.

    y1 = x1 * cos - x2 * sin          y2 = x2 * cos + x1 * sin

    dx1 = dy1 * cos + dy2 * sin          dx2 = dy2 * cos - dy1 * sin

x (..., L, D) is split into halves x1, x2 of the last axis, and y is joined from y1, y2;
cos and sin (L, D / 2) are those of l / 10000**(2 i / D) for position l and pair i. The
gradient turns back: by the opposite angle. Su and others, RoFormer, arXiv:2104.09864,
section 3.2.2; pairs by halves instead of neighbours, as most models have it.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def angles(shape):
    """Position over wavelength, for each position and each pair."""
    length, pairs = shape
    return np.outer(np.arange(length), 10000.0 ** -(np.arange(pairs) / max(1, pairs)))


def case(*x):
    table = (x[-2], x[-1] // 2)
    return Case("x".join(map(str, x)), x=x, cos=table, sin=table)


op = Op(
    "rotary",
    group="attention",
    inputs="x cos sin",
    constants={
        "cos": lambda rng, shape, shapes: np.cos(angles(shape)),
        "sin": lambda rng, shape, shapes: np.sin(angles(shape)),
    },
    cases=[case(5, 6), case(2, 3, 4, 8), case(1, 4)],
    sizes=[case(1, 8, n, 64) for n in (16, 256, 2048)],
)


@op.implement("formula")
def formula(xp, x, cos, sin):
    pairs = xp.reshape(x, (*x.shape[:-1], 2, cos.shape[1]))
    x1, x2 = pairs[..., 0, :], pairs[..., 1, :]
    y = xp.concat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], axis=-1)
    return xp.reshape(y, tuple(x.shape))


def turned(x, cos, sin):
    x1, x2 = np.split(x, 2, axis=-1)
    return np.concatenate((x1 * cos - x2 * sin, x2 * cos + x1 * sin), axis=-1)


@op.implement("manual")
def manual(x, cos, sin):
    """A rotation: its transpose is its inverse, which turns the other way."""
    return turned(x, cos, sin), lambda dy: (turned(dy, cos, -sin),)


@op.implement("autograd")
def autograd(F, x, cos, sin):
    """As models write it: both tables twice, and the halves of x exchanged."""
    half = x.shape[-1] // 2
    exchanged = F.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * F.cat((cos, cos), dim=-1) + exchanged * F.cat((sin, sin), dim=-1)


@op.implement("custom")
class Rotary:
    """Each pair as a column: a matrix of two rows, and its transpose."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        pairs = x.reshape(*x.shape[:-1], 2, cos.shape[1])
        first, second = pairs.unbind(-2)
        y = pairs * cos.unsqueeze(-2)
        y[..., 0, :] -= second * sin
        y[..., 1, :] += first * sin
        return y.reshape(x.shape)

    @staticmethod
    def backward(ctx, dy):
        cos, sin = ctx.saved_tensors
        pairs = dy.reshape(*dy.shape[:-1], 2, cos.shape[1])
        first, second = pairs.unbind(-2)
        dx = pairs * cos.unsqueeze(-2)
        dx[..., 0, :] += second * sin
        dx[..., 1, :] -= first * sin
        return dx.reshape(dy.shape), None, None
