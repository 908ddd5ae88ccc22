"""Convolution over one axis; dilation leaves gaps between the weights of the kernel.

    y[b, o, l] = bias[o] + sum(weight[o, c, i] * x[b, c, s * l + d * i - p])

    dweight[o, c, i] = sum(dy[b, o, l] * x[b, c, s * l + d * i - p])
    dx[b, c, n] = sum(dy[b, o, l] * weight[o, c, i]),   dbias[o] = sum(dy[b, o, l])

x (B, C, L), weight (O, C, I), bias (O), stride s, dilation d, padding p. y sums over
c and i, dweight and dbias over b and l, dx over o and all l and i that meet x at n:
s l + d i - p = n. A kernel of I weights covers d (I - 1) + 1 elements. Yu and Koltun,
Multi-Scale Context Aggregation by Dilated Convolutions, arXiv:1511.07122.
"""

import numpy as np

from gradwatch.impls.contract import Case, Op


def case(name, x, weight, stride=1, padding=0, dilation=1):
    shapes = {"x": x, "weight": weight, "bias": weight[:1]}
    return Case(name, **shapes, stride=stride, padding=padding, dilation=dilation)


op = Op(
    "conv1d",
    group="convolution",
    inputs="x weight bias",
    cases=[
        case("2x4x9", (2, 4, 9), (5, 4, 3)),
        case("2x3x9-dilated", (2, 3, 9), (4, 3, 3), dilation=2),
        case("1x2x10-strided-padded", (1, 2, 10), (3, 2, 3), 2, 1, 2),
    ],
    sizes=[
        case(f"1x{c}x{n}", (1, c, n), (c, c, 3), padding=1)
        for c, n in ((4, 64), (32, 512), (128, 2048))
    ],
)


@op.implement("formula")
def formula(xp, x, weight, bias, **steps):
    seen = xp.sliding_windows(x, tuple(weight.shape[2:]), **steps)
    return xp.einsum("bcli,oci->bol", seen, weight) + xp.reshape(bias, (-1, 1))


@op.implement("manual")
def manual(x, weight, bias, *, stride, padding, dilation):
    """Each cotangent is added to the places of x that its output has read."""
    padded = np.pad(x, [(0, 0), (0, 0), (padding, padding)])
    reach = dilation * np.arange(weight.shape[2])
    starts = np.arange(0, padded.shape[2] - reach[-1], stride)
    seen = padded[:, :, starts[:, None] + reach]
    y = np.tensordot(seen, weight, axes=((1, 3), (1, 2))) + bias

    def backward(dy):
        dweight = np.tensordot(dy, seen, axes=((0, 2), (0, 2)))
        terms = np.moveaxis(np.tensordot(dy, weight, axes=(1, 0)), 1, 2)
        dpadded = np.zeros_like(padded)
        for i, gap in enumerate(reach):  # within a step no place occurs twice
            dpadded[:, :, starts + gap] += terms[..., i]
        dx = dpadded[:, :, padding : padding + x.shape[2]]
        return dx, dweight, dy.sum(axis=(0, 2))

    return np.moveaxis(y, -1, 1), backward


@op.implement("autograd")
def autograd(F, x, weight, bias, *, stride, padding, dilation):
    return F.nn.functional.conv1d(x, weight, bias, stride, padding, dilation)


@op.implement("autograd", framework="jax")
def autograd_jax(jax, x, weight, bias, *, stride, padding, dilation):
    steps = (stride,), [(padding, padding)], None, (dilation,)
    return jax.lax.conv_general_dilated(x, weight, *steps) + bias[:, None]


@op.implement("custom")
class Conv1d:
    """As a sum over the positions in the kernel: for each, a matrix product over c."""

    once_differentiable = True

    @staticmethod
    def forward(ctx, x, weight, bias, *, stride, padding, dilation):
        (b, c, n), size = x.shape, weight.shape[2]
        padded = x.new_zeros((b, c, n + 2 * padding))
        padded[:, :, padding : padding + n] = x
        out = (padded.shape[2] - dilation * (size - 1) - 1) // stride + 1
        y = x.new_zeros((b, weight.shape[0], out)) + bias.reshape(-1, 1)
        for i in range(size):
            y = y + weight[:, :, i].matmul(part(padded, i * dilation, stride, out))
        ctx.save_for_backward(padded, weight)
        return y

    @staticmethod
    def backward(ctx, dy, *, stride, padding, dilation):
        padded, weight = ctx.saved_tensors
        dx, dweight = (t.new_zeros(t.shape) for t in (padded, weight))
        for i in range(weight.shape[2]):
            at = i * dilation, stride, dy.shape[2]
            seen, to = part(padded, *at), part(dx, *at)
            dweight[:, :, i] = dy.matmul(seen.transpose(1, 2)).sum(0)
            to += weight[:, :, i].T.matmul(dy)
        return dx[:, :, padding : dx.shape[2] - padding], dweight, dy.sum((0, 2))


def part(x, first, stride, out):
    """The elements that one position of the kernel meets: `out`, `stride` apart."""
    return x[:, :, first : first + (out - 1) * stride + 1 : stride]
