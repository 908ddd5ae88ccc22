"""Rows of a table, selected by integers.

    y[..., j] = weight[index[...], j]

    dweight[i, j] = sum(dy[..., j]) over all places where index = i

index of any shape, weight (V, D). A row that is read twice gets the sum of both
cotangents, where `dweight[index] = dy` keeps only one. The row `padding` is read like
any other, but its gradient is zero. The transpose of a gather is a scatter that adds:
Griewank and Walther, Evaluating Derivatives, 2nd edition, section 3.3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def rows(rng, shape, shapes):
    """Rows of the first half of the table: many are read twice, the others never."""
    return rng.integers(0, 1 + shapes["weight"][0] // 2, shape)


op = Op(
    "embedding",
    group="indexing",
    inputs="index weight",
    constants={"index": rows},
    cases=[
        Case("7-5x3", index=(7,), weight=(5, 3), padding=None),
        Case("2x9-5x4-padding0", index=(2, 9), weight=(5, 4), padding=0),
        Case("3-1x2", index=(3,), weight=(1, 2), padding=None),
        Case("scalar-4x3", index=(), weight=(4, 3), padding=None),
    ],
    sizes=[
        Case(f"{n}-1000x64", index=(n,), weight=(1000, 64), padding=0)
        for n in (16, 512, 16384)
    ],
)


@op.implement("formula")
def formula(xp, index, weight, *, padding):
    y = xp.take(weight, index, axis=0)
    if padding is None:
        return y
    padded = xp.expand_dims(index == padding, axis=-1)
    return xp.where(padded, xp.stop_gradient(y), y)


@op.implement("manual")
def manual(index, weight, *, padding):
    """A scatter that adds, one cotangent after the other."""

    def backward(dy):
        dweight = np.zeros_like(weight)
        np.add.at(dweight, index, dy)
        if padding is not None:
            dweight[padding] = 0
        return (dweight,)

    return weight[index], backward


@op.implement("autograd")
def autograd(F, index, weight, *, padding):
    return F.nn.functional.embedding(index, weight, padding)


@op.implement("custom")
class Embedding:
    """Flat: the rows are a list, to read from and later to add to."""

    @staticmethod
    def forward(ctx, index, weight, *, padding):
        ctx.save_for_backward(index.reshape(-1), weight)
        return weight[index]

    @staticmethod
    def backward(ctx, dy, *, padding):
        index, weight = ctx.saved_tensors
        dy = dy.reshape(-1, weight.shape[1])
        if padding is not None:
            dy = dy.masked_fill((index == padding).unsqueeze(1), 0)
        return None, weight.new_zeros(weight.shape).index_add_(0, index, dy)
