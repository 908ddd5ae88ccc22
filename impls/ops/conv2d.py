"""Convolution over two axes, which is a correlation: the kernel is not turned.

    y[b, o, h, w] = bias[o] + sum(weight[o, c, i, j] * x[b, c, m, n])

    dweight[o, c, i, j] = sum(dy[b, o, h, w] * x[b, c, m, n]),   dbias[o] = sum(dy)
    dx[b, c, m, n] = sum(dy[b, o, h, w] * weight[o, c, i, j])

x (B, C, H, W), weight (O, C, I, J), bias (O), stride s, padding p; m = s h + i - p and
n = s w + j - p. Sums: over indices not on the left. arXiv:1603.07285, chapter 4.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(name, x, weight, stride=1, padding=0):
    shapes = {"x": x, "weight": weight, "bias": weight[:1]}
    return Case(name, **shapes, stride=stride, padding=padding)


op = Op(
    "conv2d",
    group="convolution",
    inputs="x weight bias",
    cases=[
        case("2x4x6x7", (2, 4, 6, 7), (5, 4, 3, 3)),
        case("1x2x7x6-strided-padded", (1, 2, 7, 6), (4, 2, 3, 3), 2, 1),
    ],
    sizes=[
        case(f"1x{c}x{n}x{n}", (1, c, n, n), (c, c, 3, 3), padding=1)
        for c, n in ((4, 8), (16, 28), (64, 56))
    ],
    domain={"weight": (-1e3, 1e3)},  # a spread zero times an infinite weight is nan
)


@op.implement("formula")
def formula(xp, x, weight, bias, **steps):
    seen = xp.sliding_windows(x, tuple(weight.shape[2:]), **steps)
    y = xp.einsum("bchwij,ocij->bohw", seen, weight)
    return y + xp.reshape(bias, (-1, 1, 1))


def windows(x, size, stride=1):
    """(B, C, h, w, *size), a view."""
    every = np.lib.stride_tricks.sliding_window_view(x, size, axis=(2, 3))
    return every[..., ::stride, ::stride, :, :]


@op.implement("manual")
def manual(x, weight, bias, *, stride, padding):
    """dx is a convolution, too: of dy, spread by the stride, with the turned kernel."""
    p, (i, j) = padding, weight.shape[2:]
    padded = np.pad(x, [(0, 0), (0, 0), (p, p), (p, p)])
    seen = windows(padded, (i, j), stride)
    y = np.tensordot(seen, weight, axes=((1, 4, 5), (1, 2, 3))) + bias

    def backward(dy):
        dweight = np.tensordot(dy, seen, axes=((0, 2, 3), (0, 2, 3)))
        (height, width), turned = padded.shape[2:], weight[:, :, ::-1, ::-1]
        spread = np.zeros((*dy.shape[:2], height + i - 1, width + j - 1), dy.dtype)
        spread[:, :, i - 1 : height : stride, j - 1 : width : stride] = dy
        dx = np.tensordot(windows(spread, (i, j)), turned, axes=((1, 4, 5), (0, 2, 3)))
        dx = np.moveaxis(dx, -1, 1)[:, :, p : p + x.shape[2], p : p + x.shape[3]]
        return dx, dweight, dy.sum(axis=(0, 2, 3))

    return np.moveaxis(y, -1, 1), backward


@op.implement("autograd")
def autograd(F, x, weight, bias, *, stride, padding):
    return F.nn.functional.conv2d(x, weight, bias, stride, padding)


@op.implement("custom")
class Conv2d:
    """As a sum over the places in the kernel: at each, a matrix product over c."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, bias, *, stride, padding):
        (b, c, h, w), (o, _, i, j), p = x.shape, weight.shape, padding
        padded = x.new_zeros((b, c, h + 2 * p, w + 2 * p))
        padded[:, :, p : p + h, p : p + w] = x
        h, w = (h + 2 * p - i) // stride + 1, (w + 2 * p - j) // stride + 1
        y = x.new_zeros((b, o, h * w)) + bias.reshape(-1, 1)
        for at, part in places(padded, (i, j), (h, w), stride):
            y = y + weight[at].matmul(part.flatten(2))
        ctx.save_for_backward(padded, weight)
        return y.reshape(b, o, h, w)

    @staticmethod
    def backward(ctx, dy, *, stride, padding):
        (padded, weight), p = ctx.saved_tensors, padding
        out, dy, (h, w) = dy.shape[2:], dy.flatten(2), padded.shape[2:]
        dx, dweight = (t.new_zeros(t.shape) for t in (padded, weight))
        for at, part in places(padded, weight.shape[2:], out, stride):
            dweight[at] = dy.matmul(part.flatten(2).transpose(1, 2)).sum(0)
        for at, part in places(dx, weight.shape[2:], out, stride):
            part += weight[at].T.matmul(dy).reshape(part.shape)
        return dx[:, :, p : h - p, p : w - p], dweight, dy.sum((0, 2))


def places(x, size, out, stride):
    """Each place of the kernel, and the part of x that it sees."""
    for i, j in np.ndindex(*size):
        h, w = i + out[0] * stride, j + out[1] * stride
        yield (..., i, j), x[:, :, i:h:stride, j:w:stride]
