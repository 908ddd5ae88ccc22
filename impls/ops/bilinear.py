"""A form in two vectors, with a matrix for each output.

    y[n, o] = bias[o] + sum(weight[o, i, j] * a[n, i] * b[n, j])

    da[n, i] = sum(dy[n, o] * weight[o, i, j] * b[n, j])
    db[n, j] = sum(dy[n, o] * weight[o, i, j] * a[n, i])
    dweight[o, i, j] = sum(dy[n, o] * a[n, i] * b[n, j]),   dbias = sum(dy)

a (N, I), b (N, J), weight (O, I, J), bias (O). Each sum is over the indices that the
left side lacks: of three factors, each has the product of the two others as slope.
Tenenbaum and Freeman, Separating Style and Content with Bilinear Models, 2000,
section 2.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(n, i, j, o):
    shapes = {"a": (n, i), "b": (n, j), "weight": (o, i, j), "bias": (o,)}
    return Case(f"{n}x{i}-{n}x{j}-{o}", **shapes)


op = Op(
    "bilinear",
    group="linear algebra",
    inputs="a b weight bias",
    cases=[case(4, 3, 5, 2), case(4, 3, 3, 3), case(1, 4, 2, 5), case(1, 1, 1, 1)],
    sizes=[case(n, n, n, n) for n in (8, 32, 96)],
)


@op.implement("formula")
def formula(xp, a, b, weight, bias):
    return xp.einsum("ni,oij,nj->no", a, weight, b) + bias


@op.implement("manual")
def manual(a, b, weight, bias):
    """The weight is summed with b first: a matrix for each row, linear in a."""
    with_b = np.einsum("oij,nj->noi", weight, b, optimize=True)
    y = np.einsum("noi,ni->no", with_b, a) + bias

    def backward(dy):
        da = np.einsum("no,noi->ni", dy, with_b)
        with_a = np.einsum("no,ni->noi", dy, a)
        db = np.einsum("noi,oij->nj", with_a, weight, optimize=True)
        dweight = np.einsum("noi,nj->oij", with_a, b, optimize=True)
        return da, db, dweight, dy.sum(axis=0)

    return y, backward


@op.implement("autograd")
def autograd(F, a, b, weight, bias):
    return F.nn.functional.bilinear(a, b, weight, bias)


@op.implement("autograd", framework="oneflow")
def autograd_oneflow(F, a, b, weight, bias):
    """OneFlow 0.9.0 has no bilinear; its einsum takes the same product."""
    return F.einsum("ni,oij,nj->no", a, weight, b) + bias


@op.implement("custom")
class Bilinear:
    """As a linear map of the outer products of a and b."""

    @staticmethod
    def forward(ctx, a, b, weight, bias):
        ctx.save_for_backward(a, b, weight)
        pairs = (a.unsqueeze(2) * b.unsqueeze(1)).flatten(1)
        return pairs.matmul(weight.flatten(1).T) + bias

    @staticmethod
    def backward(ctx, dy):
        a, b, weight = ctx.saved_tensors
        pairs = a.unsqueeze(2) * b.unsqueeze(1)
        dweight = dy.T.matmul(pairs.flatten(1)).reshape(weight.shape)
        dpairs = dy.matmul(weight.flatten(1)).reshape(pairs.shape)
        da, db = (dpairs * b.unsqueeze(1)).sum(2), (dpairs * a.unsqueeze(2)).sum(1)
        return da, db, dweight, dy.sum(0)
