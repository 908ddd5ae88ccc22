"""The mean of each window, over the last two axes.

    y = mean(window)          dx = sum(dy) / size**2 over the windows that x is in

x (B, C, H, W); square windows of `size`, `stride` apart. Zeros of the padding count as
elements: every window divides by size**2. Elements that no window covers have gradient
zero. Goodfellow, Bengio and Courville, Deep Learning, 2016, section 9.3.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(*x, size=2, stride=2, padding=0):
    name = "x".join(map(str, x)) + f"-{size}-{stride}" + "-padded" * (padding > 0)
    return Case(name, x=x, size=size, stride=stride, padding=padding)


op = Op(
    "avg_pool2d",
    group="pooling",
    inputs="x",
    cases=[
        case(2, 3, 4, 6),
        case(2, 1, 7, 6, size=3, stride=2, padding=1),
        case(1, 2, 5, 4, size=3, stride=1),
    ],
    sizes=[case(1, 16, n, n) for n in (8, 56, 224)],
)


@op.implement("formula")
def formula(xp, x, *, size, stride, padding):
    seen = xp.sliding_windows(x, (size, size), stride=stride, padding=padding)
    return xp.mean(seen, axis=(-2, -1))


def windows(x, size, stride):
    """(B, C, h, w, size, size), a view."""
    seen = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
    return seen[:, :, ::stride, ::stride]


@op.implement("manual")
def manual(x, *, size, stride, padding):
    """The transpose of a sum over windows is a sum over windows of dy, spread apart."""
    p, border = padding, (size - 1, size - 1)
    padded = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)])
    seen = windows(padded, size, stride)

    def backward(dy):
        inside = np.zeros_like(windows(padded, size, 1)[..., 0, 0])
        inside[:, :, ::stride, ::stride] = dy
        spread = np.pad(inside, [(0, 0), (0, 0), border, border])
        dx = windows(spread, size, 1).sum(axis=(4, 5)) / size**2
        return (dx[:, :, p : p + x.shape[2], p : p + x.shape[3]],)

    return seen.mean(axis=(4, 5)), backward


@op.implement("autograd")
def autograd(F, x, *, size, stride, padding):
    return F.nn.functional.avg_pool2d(x, size, stride, padding)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, *, size, stride, padding):
    window, steps = (1, 1, size, size), (1, 1, stride, stride)
    p = [(0, 0), (0, 0), (padding, padding), (padding, padding)]
    return jax.lax.reduce_window(x, 0.0, jax.lax.add, window, steps, p) / size**2


@op.implement("custom")
class AvgPool2d:
    """Place by place in the window: each takes its share of dy, forward and back."""

    @staticmethod
    def forward(ctx, x, *, size, stride, padding):
        (b, c, h, w), p = x.shape, padding
        padded = x.new_zeros((b, c, h + 2 * p, w + 2 * p))
        padded[:, :, p : p + h, p : p + w] = x
        ctx.save_for_backward(padded)
        return sum(parts(padded, size, stride)) / size**2

    @staticmethod
    def backward(ctx, dy, *, size, stride, padding):
        ((padded,), p) = ctx.saved_tensors, padding
        dx = padded.new_zeros(padded.shape)
        for part in parts(dx, size, stride):
            part += dy / size**2
        return dx[:, :, p : dx.shape[2] - p, p : dx.shape[3] - p]


def parts(x, size, stride):
    """For each place in a window, the elements that all windows have there."""
    h, w = (n - size for n in x.shape[2:])
    for i, j in np.ndindex(size, size):
        yield x[:, :, i : i + h + 1 : stride, j : j + w + 1 : stride]
