"""The Gaussian error linear unit: x weighted by the share of the normal law below it.

    y = x * P(x),   P(x) = (1 + erf(x / sqrt(2))) / 2

    dx = dy * (P(x) + x * p(x))

p(x) = exp(-x**2 / 2) / sqrt(2 * pi) is the density. With `approximate`,

    P(x) = (1 + t) / 2,   t = tanh(c * (x + 0.044715 * x**3)),   c = sqrt(2 / pi)
    p(x) = (1 - t**2) / 2 * c * (1 + 0.134145 * x**2)

x of any shape. The two differ by up to 5e-4. Hendrycks and Gimpel, arXiv:1606.08415.
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op

C = math.sqrt(2 / math.pi)

op = Op(
    "gelu",
    group="activation",
    inputs="x",
    cases=[
        Case("7", x=(7,), approximate=False),
        Case("7-tanh", x=(7,), approximate=True),
        Case("2x3x4", x=(2, 3, 4), approximate=False),
        Case("2x3x1-tanh", x=(2, 3, 1), approximate=True),
        Case("scalar", x=(), approximate=False),
    ],
    sizes=[Case(f"{n}", x=(n,), approximate=True) for n in (1024, 65536, 1048576)],
    domain={"x": (-6.0, 6.0)},  # below, 1 + erf has lost all digits of float32
)


@op.implement("formula")
def formula(xp, x, *, approximate):
    if approximate:
        t = xp.tanh(C * (x + 0.044715 * (x * x * x)))
    else:
        t = xp.erf(x * math.sqrt(0.5))
    return 0.5 * x * (1.0 + t)


@op.implement("manual")
def manual(x, *, approximate):
    """NumPy has no erf: Python's is called for each element."""
    if approximate:
        t = np.tanh(C * (x + 0.044715 * x * x * x))
        density = (1 - t * t) / 2 * C * (1 + 3 * 0.044715 * x * x)
    else:
        erf = np.frompyfunc(math.erf, 1, 1)(x * math.sqrt(0.5))
        t = np.asarray(erf, x.dtype)
        density = np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    share = (1 + t) / 2
    slope = share + x * density
    return x * share, lambda dy: (dy * slope,)


@op.implement("autograd")
def autograd(F, x, *, approximate):
    how = "tanh" if approximate else "none"
    return F.nn.functional.gelu(x, approximate=how)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, approximate):
    return jax.nn.gelu(x, approximate=approximate)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, x, *, approximate):
    return paddle.nn.functional.gelu(x, approximate)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, x, *, approximate):
    return tf.nn.gelu(x, approximate)


@op.implement("custom")
class Gelu:
    """Saves the input alone, and computes share and density again."""

    @staticmethod
    def forward(ctx, x, *, approximate):
        ctx.save_for_backward(x)
        inner = C * (x + 0.044715 * x**3)
        t = inner.tanh() if approximate else (x * math.sqrt(0.5)).erf()
        return 0.5 * x * (1 + t)

    @staticmethod
    def backward(ctx, dy, *, approximate):
        (x,) = ctx.saved_tensors
        if approximate:
            t = (C * (x + 0.044715 * x**3)).tanh()
            dt = (1 - t**2) * (C + 3 * 0.044715 * C * x**2)
        else:
            t = (x * math.sqrt(0.5)).erf()
            dt = C * (-0.5 * x**2).exp()
        return dy * (0.5 * (1 + t) + 0.5 * x * dt)
