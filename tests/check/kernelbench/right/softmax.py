import torch


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        e = torch.exp(x - x.amax(-1, keepdim=True))
        y = e / e.sum(-1, keepdim=True)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        g = dy * y
        return g - y * g.sum(-1, keepdim=True)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return Softmax.apply(x)
