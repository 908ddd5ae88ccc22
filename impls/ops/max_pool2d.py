"""The largest element of each window, over the last two axes.

    y = max(window)          dx = sum(dy) over the windows whose maximum x is

x (B, C, H, W); square windows of `size`, `stride` apart; the padding is -inf, so that
it never wins. Where windows overlap, one element can be the maximum of several and
collects all their cotangents. Of equal elements `manual` and `custom` take the first;
any other share is as good. Goodfellow, Bengio and Courville, Deep Learning, 2016, 9.3.
"""

import math

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(*x, size=2, stride=2, padding=0):
    name = "x".join(map(str, x)) + f"-{size}-{stride}" + "-padded" * (padding > 0)
    return Case(name, x=x, size=size, stride=stride, padding=padding)


op = Op(
    "max_pool2d",
    group="pooling",
    inputs="x",
    cases=[
        case(2, 3, 4, 6),
        case(2, 1, 7, 6, size=3, stride=2, padding=1),
        case(1, 2, 5, 4, size=3, stride=1),
    ],
    sizes=[case(1, 16, n, n, size=3, stride=2, padding=1) for n in (8, 56, 224)],
)


@op.implement("formula")
def formula(xp, x, *, size, stride, padding):
    steps = {"stride": stride, "padding": padding}
    seen = xp.sliding_windows(x, (size, size), value=-math.inf, **steps)
    return xp.max(seen, axis=(-2, -1))


@op.implement("manual")
def manual(x, *, size, stride, padding):
    """Each window keeps the place of its maximum, and dy is added there."""
    border = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    places = np.pad(np.arange(x.size).reshape(x.shape), border)
    padded = np.pad(x, border, constant_values=-math.inf)
    seen, at = (
        np.lib.stride_tricks.sliding_window_view(a, (size, size), axis=(2, 3))[
            :, :, ::stride, ::stride
        ]
        for a in (padded, places)
    )
    seen, at = (a.reshape(*a.shape[:4], size * size) for a in (seen, at))
    largest = seen.argmax(axis=-1)[..., None]
    at = np.take_along_axis(at, largest, -1)[..., 0]

    def backward(dy):
        dx = np.zeros(x.size, x.dtype)
        np.add.at(dx, at, dy)
        return (dx.reshape(x.shape),)

    return np.take_along_axis(seen, largest, -1)[..., 0], backward


@op.implement("autograd")
def autograd(F, x, *, size, stride, padding):
    return F.nn.functional.max_pool2d(x, size, stride, padding)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, size, stride, padding):
    w, s, p = ((i, i, n, n) for i, n in ((1, size), (1, stride), (0, padding)))
    return jax.lax.reduce_window(x, -math.inf, jax.lax.max, w, s, [(n, n) for n in p])


@op.implement("custom")
class MaxPool2d:
    """Place by place in the window: the first that equals y takes dy."""

    @staticmethod
    def forward(ctx, x, *, size, stride, padding):
        (b, c, h, w), p = x.shape, padding
        padded = x.new_zeros((b, c, h + 2 * p, w + 2 * p)) - math.inf
        padded[:, :, p : p + h, p : p + w] = x
        y = None
        for part in parts(padded, size, stride):
            y = part if y is None else part.maximum(y)
        ctx.save_for_backward(padded, y)
        return y * 1

    @staticmethod
    def backward(ctx, dy, *, size, stride, padding):
        (padded, y), p = ctx.saved_tensors, padding
        dx = padded.new_zeros(padded.shape)
        targets = parts(dx, size, stride)
        for part in parts(padded, size, stride):
            won = part == y
            target = next(targets)
            target += dy.masked_fill(~won, 0)
            dy = dy.masked_fill(won, 0)
        return dx[:, :, p : dx.shape[2] - p, p : dx.shape[3] - p]


def parts(x, size, stride):
    """For each place in a window, the elements that all windows have there."""
    h, w = (n - size for n in x.shape[2:])
    for i, j in np.ndindex(size, size):
        yield x[:, :, i : i + h + 1 : stride, j : j + w + 1 : stride]
