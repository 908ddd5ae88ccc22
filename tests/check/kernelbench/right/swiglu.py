import torch


class SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        a, b = x.chunk(2, dim=-1)
        return a * torch.sigmoid(a) * b

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors[0].chunk(2, dim=-1)
        s = torch.sigmoid(a)
        return torch.cat((dy * b * s * (1 + a * (1 - s)), dy * a * s), -1)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return SwiGlu.apply(x)
