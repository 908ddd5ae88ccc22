import torch


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scale = q.shape[-1] ** -0.5
        later = torch.ones(q.shape[-2:-1] * 2, dtype=torch.bool, device=q.device)
        scores = (q @ k.mT * scale).masked_fill(later.triu(1), -torch.inf)
        p = torch.softmax(scores, -1)
        ctx.save_for_backward(q, k, v, p)
        return p @ v

    @staticmethod
    def backward(ctx, dy):
        q, k, v, p = ctx.saved_tensors
        g = dy @ v.mT * p
        ds = (g - p * g.sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
        return ds @ k, ds.mT @ q, p.mT @ dy


class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x):
        return Attention.apply(*self.qkv(x).chunk(3, dim=-1))
