"""Elements picked along one axis, separately at each place of the other axes.

    y[i, j] = x[index[i, j], j]          dx[k, j] = sum(dy[i, j]) over i with index = k

for axis 0, and likewise for others. x and index have as many axes, and the same lengths
but along `axis`. An element picked twice collects both cotangents, one not picked gets
zero. Griewank and Walther, Evaluating Derivatives, 2nd edition, section 3.3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def places(rng, shape, shapes):
    """Positions that every axis has; some twice, some not at all."""
    return rng.integers(0, max(1, min(shapes["x"])), shape)


op = Op(
    "gather",
    group="indexing",
    inputs="x index",
    constants={"index": places},
    cases=[
        Case("5-9", x=(5,), index=(9,), axis=0),
        Case("5x4-2x4-axis0", x=(5, 4), index=(2, 4), axis=0),
        Case("2x3x4-2x6x4-axis1", x=(2, 3, 4), index=(2, 6, 4), axis=1),
        Case("3x5-3x1-last", x=(3, 5), index=(3, 1), axis=-1),
    ],
    sizes=[
        Case(f"{n}x1024", x=(n, 1024), index=(n, 256), axis=-1) for n in (4, 64, 1024)
    ],
)


@op.implement("formula")
def formula(xp, x, index, *, axis):
    return xp.take_along_axis(x, index, axis=axis)


@op.implement("manual")
def manual(x, index, *, axis):
    """The backward adds to the flat positions that the forward reads."""
    numbers = np.arange(x.size).reshape(x.shape)
    flat = np.take_along_axis(numbers, index, axis)

    def backward(dy):
        dx = np.zeros(x.size, x.dtype)
        np.add.at(dx, flat, dy)
        return (dx.reshape(x.shape),)

    return x.reshape(-1)[flat], backward


@op.implement("autograd")
def autograd(F, x, index, *, axis):
    return F.gather(x, axis, index)


@op.implement("custom")
class Gather:
    """The frameworks' own transpose of a gather."""

    @staticmethod
    def forward(ctx, x, index, *, axis):
        ctx.save_for_backward(x, index)
        return x.gather(axis, index)

    @staticmethod
    def backward(ctx, dy, *, axis):
        x, index = ctx.saved_tensors
        return x.new_zeros(x.shape).scatter_add(axis, index, dy), None
