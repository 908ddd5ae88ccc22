"""The gated linear unit: one half of an axis gated by the other.

    a, b = halves of x          y = a * s(b),   s(b) = 1 / (1 + exp(-b))

    da = dy * s(b),   db = dy * a * s(b) * s(-b)          dx = [da, db]

x of any shape whose length along `axis` is even. Dauphin and others, Language Modeling
with Gated Convolutional Networks, arXiv:1612.08083, equation 1.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "glu",
    group="activation",
    inputs="x",
    cases=[
        Case("4x6", x=(4, 6), axis=-1),
        Case("2x5-axis0", x=(2, 5), axis=0),
        Case("3x4x5-axis1", x=(3, 4, 5), axis=1),
        Case("8", x=(8,), axis=0),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), axis=-1) for n in (4, 64, 1024)],
    domain={"x": (-30.0, 30.0)},  # the slope of the gate is 1e-13 there
)


@op.implement("formula")
def formula(xp, x, *, axis):
    n = x.shape[axis]
    if n % 2:
        raise ValueError(f"{n} elements have no halves")
    a = xp.take(x, xp.arange(n // 2), axis=axis)
    b = xp.take(x, xp.arange(n // 2, n), axis=axis)
    return a * xp.sigmoid(b)


@op.implement("manual")
def manual(x, *, axis):
    """With e = exp(-|b|), s(b) * s(-b) = e / (1 + e)**2 at either sign of b."""
    a, b = np.split(x, 2, axis=axis)
    e = np.exp(-np.abs(b))
    whole = 1 + e
    s = np.maximum(e, b >= 0) / whole  # the numerator is 1 or e, and e <= 1

    def backward(dy):
        da, db = dy * s, dy * a * (e / whole / whole)
        return (np.concatenate((da, db), axis=axis),)

    return a * s, backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.nn.functional.glu(x, axis)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, axis):
    return jax.nn.glu(x, axis)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, axis):
    return paddle.nn.functional.glu(x, axis)


@op.implement("custom")
class Glu:
    """Keeps the gate and the result: db = dy * y * (1 - s), without a."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, *, axis):
        n = x.shape[axis] // 2
        s = x.narrow(axis, n, n).sigmoid()
        y = x.narrow(axis, 0, n) * s
        ctx.save_for_backward(x, s, y)
        return y

    @staticmethod
    def backward(ctx, dy, *, axis):
        x, s, y = ctx.saved_tensors
        n = s.shape[axis]
        dx = x.new_zeros(x.shape)
        dx.narrow(axis, 0, n).copy_(dy * s)
        dx.narrow(axis, n, n).copy_(dy * y * (1 - s))
        return dx
