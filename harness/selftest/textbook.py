"""Backwards as a textbook writes them: the right ones that errors are planted in.

Each is called like the `manual` dialect of its op's page, and says the same. The pages'
own backwards are written to be fast and may change; these are written to be read, one
step a line, so that a mistake is an edit of one line (mistakes.toml).
They are judged themselves: `gradwatch selftest` fails if one of them is wrong.
"""

# ruff: noqa: D103  # the pages in impls/ops say what each of them computes
from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradwatch.impls.contract import sum_to

Said = tuple[Any, Any]  # outputs and backward


def add(a: Any, b: Any) -> Said:
    return a + b, lambda dy: (sum_to(dy, a.shape), sum_to(dy, b.shape))


def mul(a: Any, b: Any) -> Said:
    return a * b, lambda dy: (sum_to(dy * b, a.shape), sum_to(dy * a, b.shape))


def maximum(a: Any, b: Any) -> Said:
    y = np.maximum(a, b)

    def backward(dy: Any) -> Any:
        da = np.add(a > b, a >= b, dtype=y.dtype)
        da *= 0.5
        da *= dy
        return sum_to(da, a.shape), sum_to(dy - da, b.shape)

    return y, backward


def dot(a: Any, b: Any) -> Said:
    return np.dot(a, b), lambda dy: (dy * b, dy * a)


def matmul(a: Any, b: Any) -> Said:
    rows, columns = np.atleast_2d(a), b[:, None] if b.ndim == 1 else b
    y = rows @ columns

    def backward(dy: Any) -> Any:
        dy = dy.reshape(y.shape)
        da = sum_to(dy @ np.swapaxes(columns, -1, -2), rows.shape)
        db = sum_to(np.swapaxes(rows, -1, -2) @ dy, columns.shape)
        return da.reshape(a.shape), db.reshape(b.shape)

    return a @ b, backward


def exp2(x: Any) -> Said:
    y = np.exp2(x)
    ln2 = y.dtype.type(math.log(2))

    def backward(dy: Any) -> Any:
        dx = dy * y
        dx *= ln2
        return (dx,)

    return y, backward


def square(x: Any) -> Said:
    y = np.square(x)

    def backward(dy: Any) -> Any:
        dx = dy * x
        dx += dx
        return (dx,)

    return y, backward


def sigmoid(x: Any) -> Said:
    e = np.exp(-np.abs(x))
    whole = 1 + e
    y = np.maximum(e, x >= 0) / whole

    def backward(dy: Any) -> Any:
        dx = e / whole
        dx /= whole
        dx *= dy
        return (dx,)

    return y, backward


def sum_product(a: Any, b: Any, c: Any) -> Said:
    q = a + b

    def backward(dy: Any) -> Any:
        dq = sum_to(dy * c, q.shape)
        return sum_to(dq, a.shape), sum_to(dq, b.shape), sum_to(dy * q, c.shape)

    return q * c, backward


def affine_pair(x1: Any, x2: Any) -> Said:
    factor = x1 + 4.3
    return factor * x2 + 30, lambda dy: (dy * x2, dy * factor)


def neuron(w: Any, x: Any) -> Said:
    inside = np.ones_like(w)
    inside[:2] = x
    q = np.dot(w, inside)
    y = np.exp(-np.logaddexp(0, -q))

    def backward(dy: Any) -> Any:
        dq = dy * y * (1 - y)
        return dq * inside, dq * w[:2]

    return y, backward


def sigmoid_ratio(x: Any, y: Any) -> Said:
    of_x, of_y = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(-y))
    total = x + y
    d = of_x + total * total
    f = (x + of_y) / d

    def backward(df: Any) -> Any:
        dnumerator = df / d
        dd = -dnumerator * f
        dtotal = 2 * total * dd
        dx = dnumerator + of_x * (1 - of_x) * dd + dtotal
        dy = of_y * (1 - of_y) * dnumerator + dtotal
        return dx, dy

    return f, backward


def nested_trig(
    x: Any,
    y: Any,
    b0: Any,
    b1: Any,
    b2: Any,
    b3: Any,
    w0: Any,
    w1: Any,
    w2: Any,
    w3: Any,
) -> Said:
    f0 = b0 + w0 * x
    h1 = np.sin(f0)
    f1 = b1 + w1 * h1
    h2 = np.exp(f1)
    f2 = b2 + w2 * h2
    h3 = np.cos(f2)
    f3 = b3 + w3 * h3

    def backward(dloss: Any) -> Any:
        df3 = dloss * 2 * (f3 - y)
        dh3 = df3 * w3
        df2 = dh3 * -np.sin(f2)
        dh2 = df2 * w2
        df1 = dh2 * h2
        dh1 = df1 * w1
        df0 = dh1 * np.cos(f0)
        dw0, dw1, dw2, dw3 = df0 * x, df1 * h1, df2 * h2, df3 * h3
        return df0 * w0, -df3, df0, df1, df2, df3, dw0, dw1, dw2, dw3

    return np.square(f3 - y), backward


def linear(x: Any, weight: Any, bias: Any) -> Said:
    def backward(dy: Any) -> Any:
        leading = tuple(range(x.ndim - 1))
        dweight = np.tensordot(dy, x, axes=(leading, leading))
        return dy @ weight, dweight, dy.sum(axis=leading)

    return x @ weight.T + bias, backward


def layer_norm(x: Any, weight: Any, bias: Any, *, eps: float) -> Said:
    n = weight.size
    h = x.reshape(-1, n) - x.reshape(-1, n).mean(axis=1, keepdims=True)
    rstd = 1 / np.sqrt(np.einsum("ri,ri->r", h, h)[:, None] / n + eps)
    h *= rstd
    y = h * weight.reshape(n) + bias.reshape(n)

    def backward(dy: Any) -> Any:
        dy = dy.reshape(-1, n)
        dweight, dbias = np.einsum("ri,ri->i", dy, h), dy.sum(axis=0)
        dx = dy * weight.reshape(n)
        along_h = np.einsum("ri,ri->r", dx, h)[:, None] / n
        dx -= dx.mean(axis=1, keepdims=True)
        dx -= h * along_h
        dx *= rstd
        return dx.reshape(x.shape), *(d.reshape(weight.shape) for d in (dweight, dbias))

    return y.reshape(x.shape), backward


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    *,
    eps: float,
    momentum: float,
    training: bool,
) -> Said:
    flat = x.reshape(*x.shape[:2], -1)
    n = flat.size // flat.shape[1]
    mean = flat.mean(axis=(0, 2)) if training else running_mean
    h = flat - mean[:, None]
    var = np.einsum("bci,bci->c", h, h) / n if training else running_var
    rstd = 1 / np.sqrt(var + eps)
    h *= rstd[:, None]
    if training:
        running_mean += momentum * (mean - running_mean)
        running_var += momentum * (var * (n / (n - 1)) - running_var)

    def backward(dy: Any) -> Any:
        dy = dy.reshape(h.shape)
        dweight, dbias = np.einsum("bci,bci->c", dy, h), dy.sum(axis=(0, 2))
        dx = dy - h * (dweight / n)[:, None] - (dbias / n)[:, None] if training else dy
        return (dx * (weight * rstd)[:, None]).reshape(x.shape), dweight, dbias

    return (h * weight[:, None] + bias[:, None]).reshape(x.shape), backward


def softmax(x: Any, *, axis: int) -> Said:
    y = np.exp(x - x.max(axis=axis, keepdims=True))
    y /= y.sum(axis=axis, keepdims=True)

    def backward(dy: Any) -> Any:
        dx = dy * y
        dx -= y * dx.sum(axis=axis, keepdims=True)
        return (dx,)

    return y, backward


def log_softmax(x: Any, *, axis: int) -> Said:
    y = x - x.max(axis=axis, keepdims=True)
    y -= np.log(np.exp(y).sum(axis=axis, keepdims=True))

    def backward(dy: Any) -> Any:
        dx = np.exp(y)
        dx *= dy.sum(axis=axis, keepdims=True)
        np.subtract(dy, dx, out=dx)
        return (dx,)

    return y, backward


def max_with_indices(x: Any, *, axis: int) -> Said:
    indices = x.argmax(axis=axis)
    places = np.expand_dims(indices, axis)
    values = np.take_along_axis(x, places, axis).squeeze(axis)

    def backward(dvalues: Any, dindices: Any) -> Any:
        dx = np.zeros_like(x)
        np.put_along_axis(dx, places, np.expand_dims(dvalues, axis), axis)
        return (dx,)

    return (values, indices), backward


def double_output(x: Any) -> Said:
    def backward(dy1: Any, dy2: Any) -> Any:
        dx = 2 * dy1
        dx += dy2
        return (dx,)

    return (2 * x, x + 3), backward
