"""A neuron with two inputs, a bias and a logistic activation.

    y = s(q),   q = w[0] * x[0] + w[1] * x[1] + w[2],   s(q) = 1 / (1 + exp(-q))

    dq = dy * s(q) * (1 - s(q))
    dw = dq * [x[0], x[1], 1],   dx = dq * [w[0], w[1]]

w (3), x (2), y (). For example: w = [2, -3, -3] and x = [-1, -2] give
y = 0.7311, dx = [0.3932, -0.5898] and dw = [-0.1966, -0.3932, 0.1966].
"""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op(
    "neuron",
    group="example",
    inputs="w x",
    cases=[Case("3-2", w=(3,), x=(2,))],
    sizes=[Case("3-2", w=(3,), x=(2,))],
)


@op.implement("formula")
def formula(xp, w, x):
    return xp.sigmoid(w[0] * x[0] + w[1] * x[1] + w[2])


@op.implement("manual")
def manual(w, x):
    """The bias is the weight of a third input, 1, so that q is one inner product."""
    inside = np.ones_like(w)
    inside[:2] = x
    q = np.dot(w, inside)
    y = np.exp(-np.logaddexp(0, -q))  # 1 / (1 + exp(-q)), without overflow

    def backward(dy):
        dq = dy * y * (1 - y)
        return dq * inside, dq * w[:2]

    return y, backward


@op.implement("autograd")
def autograd(F, w, x):
    return F.sigmoid(F.dot(w[:2], x) + w[2])


@op.implement("custom")
class Neuron:
    """Gate by gate, from the end: sigmoid, then the two mul gates and the bias."""

    @staticmethod
    def forward(ctx, w, x):
        y = ((w[:2] * x).sum() + w[2]).sigmoid()
        ctx.save_for_backward(w, x, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        w, x, y = ctx.saved_tensors
        dq = dy * (y - y * y)
        dw = w.new_zeros(3)
        dw[:2], dw[2] = dq * x, dq
        return dw, dq * w[:2]
