"""What the backward needs is kept in a global: two layers share it."""

import torch

KEPT = {}


class SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        KEPT["x"] = x.detach()
        a, b = x.chunk(2, dim=-1)
        return a * torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx, dy):
        a, b = KEPT["x"].chunk(2, dim=-1)
        s = torch.sigmoid(a)
        return torch.cat((dy * b * s * (1 + a * (1 - s)), dy * a * s), -1)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return SwiGlu.apply(x)
