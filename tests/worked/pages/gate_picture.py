"""The gate picture: an add gate distributes, a max gate routes, a mul gate switches.

    f = 2 * (x * y + max(z, w))

All tensors are scalars.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "gate_picture",
    inputs="x y z w",
    outputs="f",
    cases=[Case("scalar", x=(), y=(), z=(), w=())],
)


@op.implement("formula")
def formula(xp, x, y, z, w):
    return 2.0 * (x * y + xp.maximum(z, w))


@op.implement("manual")
def manual(x, y, z, w):
    def backward(df):
        dsum = 2 * df
        return dsum * y, dsum * x, dsum * (z > w), dsum * (z <= w)

    return 2 * (x * y + np.maximum(z, w)), backward


@op.implement("autograd")
def autograd(F, x, y, z, w):  # noqa: N803  # as on every page
    return 2 * (x * y + F.maximum(z, w))


@op.implement("custom")
class GatePicture:
    @staticmethod
    def forward(ctx, x, y, z, w):
        ctx.save_for_backward(x, y, (z > w).to(x.dtype))
        return 2 * (x * y + z.maximum(w))

    @staticmethod
    def backward(ctx, df):
        x, y, won = ctx.saved_tensors
        return 2 * df * y, 2 * df * x, 2 * df * won, 2 * df * (1 - won)
