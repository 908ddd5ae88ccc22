import torch


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        centred = x - x.mean(-1, keepdim=True)
        scale = torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5)
        near = centred * scale
        ctx.save_for_backward(near, scale, weight)
        return near * weight + bias

    @staticmethod
    def backward(ctx, dy):
        near, scale, weight = ctx.saved_tensors
        g = dy * weight
        rows = tuple(range(dy.ndim - 1))
        slope = (g * near).mean(-1, keepdim=True) * near
        dx = scale * (g - g.mean(-1, keepdim=True) - slope)
        return dx, (dy * near).sum(rows), dy.sum(rows)


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width))
        self.bias = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return Norm.apply(x, self.weight, self.bias)
