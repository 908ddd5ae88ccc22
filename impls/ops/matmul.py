"""The matrix product, over any leading axes, which broadcast.

    y[..., i, j] = sum_k a[..., i, k] * b[..., k, j]

    da = dy @ b^T,   db = a^T @ dy          summed over the broadcast leading axes

a (..., n, k), b (..., k, m), y (..., n, m). A vector a (k) is a row, b (k) a column,
and y lacks that axis.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op, sum_to

op = Op(
    "matmul",
    group="linear algebra",
    inputs="a b",
    cases=[
        Case("5x10-10x3", a=(5, 10), b=(10, 3)),
        Case("1x1-1x1", a=(1, 1), b=(1, 1)),
        Case("2x3x4-2x4x5", a=(2, 3, 4), b=(2, 4, 5)),
        Case("2x3x4-4x5", a=(2, 3, 4), b=(4, 5)),
        Case("2x1x3x4-5x4x2", a=(2, 1, 3, 4), b=(5, 4, 2)),
        Case("4-4x5", a=(4,), b=(4, 5)),
        Case("3x4-4", a=(3, 4), b=(4,)),
    ],
    odd=[
        Case("4-2x4x5", a=(4,), b=(2, 4, 5)),
        Case("2x3x4-4", a=(2, 3, 4), b=(4,)),
    ],
    sizes=[Case(f"{n}x{n}-{n}x{n}", a=(n, n), b=(n, n)) for n in (16, 128, 512)],
)


@op.implement("formula")
def formula(xp, a, b):
    return xp.matmul(a, b)


@op.implement("manual")
def manual(a, b):
    """Index by index: da[i, k] = sum_j dy[i, j] * b[k, j], a product with b^T."""
    rows, columns = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    y = rows @ columns

    def backward(dy):
        dy = dy.reshape(y.shape)
        da = sum_to(dy @ np.swapaxes(columns, -1, -2), rows.shape)
        db = sum_to(np.swapaxes(rows, -1, -2) @ dy, columns.shape)
        return da.reshape(a.shape), db.reshape(b.shape)

    return a @ b, backward


@op.implement("autograd")
def autograd(F, a, b):
    return F.matmul(a, b)


@op.implement("autograd", framework="paddle")
def autograd_paddle(paddle, a, b):
    return paddle.matmul(a, b)


@op.implement("autograd", framework="tensorflow")
def autograd_tensorflow(tf, a, b):
    return tf.experimental.numpy.matmul(a, b)


@op.implement("custom")
class Matmul:
    """From y^T = b^T a^T: da^T = b dy^T and db^T = dy^T a."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.matmul(b)

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        rows, columns = a, b
        if b.ndim == 1:
            columns, dy = b.unsqueeze(1), dy.unsqueeze(-1)
        if a.ndim == 1:
            rows, dy = a.unsqueeze(0), dy.unsqueeze(-2)
        dy = dy.transpose(-1, -2)
        da, db = columns.matmul(dy).transpose(-1, -2), dy.matmul(rows).transpose(-1, -2)
        da, db = sum_to(da, rows.shape), sum_to(db, columns.shape)
        return da.reshape(a.shape), db.reshape(b.shape)
