"""The largest element along one axis, and where it stands.

    values = max(x),   indices = argmax(x)          dx[indices] = dvalues, else 0

x of any shape with at least one axis; values and indices lack `axis`. The indices are
integers: they have no gradient, and the cotangent that arrives for them is ignored. Of
equal elements `manual` and `custom` take the first; any other share is as good.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "max_with_indices",
    group="reduction",
    inputs="x",
    outputs="values indices",
    integers="indices",
    cases=[
        Case("1x2x2-axis1", x=(1, 2, 2), axis=1),
        Case("5x4-axis0", x=(5, 4), axis=0),
        Case("2x3x4-last", x=(2, 3, 4), axis=-1),
        Case("6", x=(6,), axis=0),
        Case("3x1", x=(3, 1), axis=-1),
    ],
    sizes=[Case(f"{n}x1024", x=(n, 1024), axis=-1) for n in (4, 64, 1024)],
)


@op.implement("formula")
def formula(xp, x, *, axis):
    return xp.max(x, axis=axis), xp.argmax(x, axis=axis)


@op.implement("manual")
def manual(x, *, axis):
    """The gradient of a selection puts cotangents where the elements were taken."""
    indices = x.argmax(axis=axis)
    places = np.expand_dims(indices, axis)
    values = np.take_along_axis(x, places, axis).squeeze(axis)

    def backward(dvalues, dindices):
        dx = np.zeros_like(x)
        np.put_along_axis(dx, places, np.expand_dims(dvalues, axis), axis)
        return (dx,)

    return (values, indices), backward


@op.implement("autograd")
def autograd(F, x, *, axis):
    return F.max(x, dim=axis)


@op.implement("custom")
class MaxWithIndices:
    @staticmethod
    def forward(ctx, x, *, axis):
        values, indices = x.max(axis)
        ctx.mark_non_differentiable(indices)
        ctx.save_for_backward(x, indices.unsqueeze(axis))
        return values, indices

    @staticmethod
    def backward(ctx, dvalues, dindices, *, axis):
        x, places = ctx.saved_tensors
        dx = dvalues.new_zeros(x.shape)
        return dx.scatter_(axis, places, dvalues.unsqueeze(axis))
