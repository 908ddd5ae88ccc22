"""The inner product of two vectors.

    y = sum_i a[i] * b[i]          da = dy * b,   db = dy * a

a and b (n). The same tensor passed twice gets both: dot(x, x) has dx = 2 * x * dy.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "dot",
    group="linear algebra",
    inputs="a b",
    cases=[
        Case("5", a=(5,), b=(5,)),
        Case("1", a=(1,), b=(1,)),
        Case("itself", a=(3,), b="a"),
    ],
    sizes=[Case(f"{n}", a=(n,), b=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, a, b):
    return xp.sum(a * b)


@op.implement("manual")
def manual(a, b):
    """Bilinear: linear in a with coefficients b, and the other way round."""
    return np.dot(a, b), lambda dy: (dy * b, dy * a)


@op.implement("autograd")
def autograd(F, a, b):
    return F.dot(a, b)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, a, b):
    return jax.numpy.dot(a, b)


@op.implement("custom")
class Dot:
    """As a matrix product of a row and a column: da = dy b^T, db = a^T dy."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, a, b):
        row, column = a.reshape(1, -1), b.reshape(-1, 1)
        ctx.save_for_backward(row, column)
        return row.matmul(column).reshape(())

    @staticmethod
    def backward(ctx, dy):
        row, column = ctx.saved_tensors
        dy = dy.reshape(1, 1)
        return dy.matmul(column.T).reshape(-1), row.T.matmul(dy).reshape(-1)
