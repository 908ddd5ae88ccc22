"""y = x * x * w with a backward that is right but for one real bug."""

from types import SimpleNamespace

import torch

BUGS = (
    "saved tensors in a global",
    "one buffer for every gradient",
    "cotangents clipped",
    "nan where the cotangent is zero",
    "wrong beyond 2e6",
    "tail of a block not written",
    "wrong if x is frozen",
)


def square_times(x, w):
    return x * x * w


def candidate(bug):
    """The function with one of the `BUGS`; right with any other name."""
    kept = SimpleNamespace(saved=None, buffers={})

    def gradients(ctx, dy):
        x, w = kept.saved if bug == BUGS[0] else ctx.saved_tensors
        if bug == BUGS[2]:
            dy = dy.clamp(-6, 6)
        dx, dw = 2 * x * w * dy, x * x * dy
        if bug == BUGS[3]:
            dx = torch.where(dy == 0, torch.nan, dx)
        if bug == BUGS[4]:
            dx = torch.where(x.abs() > 2e6, 0 * dx, dx)
        count = dx.numel()
        if bug == BUGS[5] and count > 128 and count % 128:
            dx.view(-1)[count - count % 128 :] = 0
        if bug == BUGS[6] and not ctx.needs_input_grad[0]:
            dw = dw * 0
        return dx, dw

    class SquareTimes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            kept.saved = (x.detach(), w.detach())
            ctx.save_for_backward(x, w)
            return x * x * w

        @staticmethod
        def backward(ctx, dy):
            dx, dw = gradients(ctx, dy)
            if bug == BUGS[1]:
                key = (dx.shape, dx.dtype)
                dx = kept.buffers.setdefault(key, torch.empty_like(dx)).copy_(dx)
            return dx, dw

    return SquareTimes.apply
