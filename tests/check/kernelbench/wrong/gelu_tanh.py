"""The backward is that of the exact form, by the error function."""

import math

import torch

C, A = math.sqrt(2 / math.pi), 0.044715


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * x * (1 + torch.tanh(C * (x + A * x**3)))

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        density = torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
        return dy * (0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * density)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Gelu.apply(x)
