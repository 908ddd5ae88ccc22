"""The mask of the ReLU is missing in the gradient of the bias."""

import torch


class LinearRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        y = torch.clamp(x @ weight.T + bias, min=0)
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, y = ctx.saved_tensors
        g = dy * (y > 0)
        return g @ weight, g.T @ x, dy.sum(0)


class ModelNew(torch.nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.linear = torch.nn.Linear(fan_in, fan_out)

    def forward(self, x):
        return LinearRelu.apply(x, self.linear.weight, self.linear.bias)
