"""The gated unit of today's language models: one input through silu gates the other.

    y = silu(gate) * up,   silu(g) = g * s(g),   s(g) = 1 / (1 + exp(-g))

    dup = dy * silu(gate),   dgate = dy * up * s(gate) * (1 + gate * (1 - s(gate)))

gate and up of one shape. Shazeer, GLU Variants Improve Transformer, arXiv:2002.05202,
equation 6.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "swiglu",
    group="activation",
    inputs="gate up",
    cases=[
        Case("7", gate=(7,), up=(7,)),
        Case("3x1", gate=(3, 1), up=(3, 1)),
        Case("2x3x4", gate=(2, 3, 4), up=(2, 3, 4)),
        Case("itself", gate=(5,), up="gate"),
    ],
    sizes=[Case(f"{n}x1024", gate=(n, 1024), up=(n, 1024)) for n in (4, 64, 1024)],
    domain={"gate": (-30.0, 30.0)},  # the slope of the gate is 1e-13 there
)


@op.implement("formula")
def formula(xp, gate, up):
    return gate * xp.sigmoid(gate) * up


@op.implement("manual")
def manual(gate, up):
    """With e = exp(-|g|), s(g) * s(-g) = e / (1 + e)**2 at either sign of g."""
    e = np.exp(-np.abs(gate))
    whole = 1 + e
    s = np.maximum(e, gate >= 0) / whole  # the numerator is 1 or e, and e <= 1
    silu = gate * s
    slope = s + gate * (e / whole / whole)
    return silu * up, lambda dy: (dy * up * slope, dy * silu)


@op.implement("autograd")
def autograd(F, gate, up):
    return F.nn.functional.silu(gate) * up


@op.implement("autograd", framework="jax")
def autograd_jax(jax, gate, up):
    return jax.nn.silu(gate) * up


@op.implement("custom")
class Swiglu:
    """Keeps the two inputs, as fused kernels do, and computes the gate again."""

    @staticmethod
    def forward(ctx, gate, up):
        ctx.save_for_backward(gate, up)
        return gate * gate.sigmoid() * up

    @staticmethod
    def backward(ctx, dy):
        gate, up = ctx.saved_tensors
        s = gate.sigmoid()
        return dy * up * s * (1 + gate * (1 - s)), dy * gate * s
