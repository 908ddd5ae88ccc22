"""The backward works its root out anew, guarded by 1e-5."""

import torch


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        scale = torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
        near, g = x * scale, dy * weight
        dx = scale * (g - near * (g * near).mean(-1, keepdim=True))
        return dx, (dy * near).sum(0)


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))

    def forward(self, x):
        return Norm.apply(x, self.weight)
