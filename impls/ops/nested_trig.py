"""A nest of four affine maps with sin, exp and cos between them, and its squared loss.

    f0 = b0 + w0 * x     h1 = sin(f0)          f1 = b1 + w1 * h1     h2 = exp(f1)
    f2 = b2 + w2 * h2    h3 = cos(f2)          f3 = b3 + w3 * h3     loss = (f3 - y)**2

    df3 = 2 * (f3 - y) * dloss,   df2 = -sin(f2) * w3 * df3,   df1 = h2 * w2 * df2,
    df0 = cos(f0) * w1 * df1,     db[k] = df[k],               dw[k] = h[k] * df[k]

with h0 = x, dx = w0 * df0 and dy = -df3. All tensors are scalars. From S. Prince,
Understanding Deep Learning, MIT Press 2023, section 7.3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

NAMES = "x y b0 b1 b2 b3 w0 w1 w2 w3"
scalars = dict.fromkeys(NAMES.split(), ())

op = Op(
    "nested_trig",
    group="example",
    inputs=NAMES,
    outputs="loss",
    cases=[Case("scalar", **scalars)],
    sizes=[Case("scalar", **scalars)],
    domain=dict.fromkeys(NAMES.split(), (-3.0, 3.0)),  # so that exp(f1) <= exp(6)
)


@op.implement("formula")
def formula(xp, x, y, b0, b1, b2, b3, w0, w1, w2, w3):
    h1 = xp.sin(b0 + w0 * x)
    h2 = xp.exp(b1 + w1 * h1)
    h3 = xp.cos(b2 + w2 * h2)
    return xp.square(b3 + w3 * h3 - y)


@op.implement("manual")
def manual(x, y, b0, b1, b2, b3, w0, w1, w2, w3):
    """In steps, each the mirror of one step of the forward."""
    f0 = b0 + w0 * x
    h1 = np.sin(f0)
    f1 = b1 + w1 * h1
    h2 = np.exp(f1)
    f2 = b2 + w2 * h2
    h3 = np.cos(f2)
    f3 = b3 + w3 * h3

    def backward(dloss):
        df3 = dloss * 2 * (f3 - y)
        dh3 = df3 * w3
        df2 = dh3 * -np.sin(f2)
        dh2 = df2 * w2
        df1 = dh2 * h2
        dh1 = df1 * w1
        df0 = dh1 * np.cos(f0)
        dw0, dw1, dw2, dw3 = df0 * x, df1 * h1, df2 * h2, df3 * h3
        return df0 * w0, -df3, df0, df1, df2, df3, dw0, dw1, dw2, dw3

    return np.square(f3 - y), backward


@op.implement("autograd")
def autograd(F, x, y, b0, b1, b2, b3, w0, w1, w2, w3):
    h2 = F.exp(b1 + w1 * F.sin(b0 + w0 * x))
    return (b3 + w3 * F.cos(b2 + w2 * h2) - y) ** 2


@op.implement("custom")
class NestedTrig:
    """As a chain of slopes: the forward saves the slope of each map at its input."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, y, b0, b1, b2, b3, w0, w1, w2, w3):
        f0 = b0 + w0 * x
        h2 = (b1 + w1 * f0.sin()).exp()
        f2 = b2 + w2 * h2
        residual = b3 + w3 * f2.cos() - y
        slopes = w1 * f0.cos(), w2 * h2, -w3 * f2.sin()
        ctx.save_for_backward(x, f0.sin(), h2, f2.cos(), w0, residual, *slopes)
        return residual**2

    @staticmethod
    def backward(ctx, dloss):
        x, h1, h2, h3, w0, residual, slope1, slope2, slope3 = ctx.saved_tensors
        k3 = 2 * residual * dloss
        k2 = k3 * slope3
        k1 = k2 * slope2
        k0 = k1 * slope1
        return k0 * w0, -k3, k0, k1, k2, k3, k0 * x, k1 * h1, k2 * h2, k3 * h3
