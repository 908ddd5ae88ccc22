import torch


class Bag(torch.autograd.Function):
    @staticmethod
    def forward(ctx, table, tokens):
        ctx.save_for_backward(table, tokens)
        return table[tokens].sum(1)

    @staticmethod
    def backward(ctx, dy):
        table, tokens = ctx.saved_tensors
        rows = dy[:, None].expand(*tokens.shape, dy.shape[-1])
        at = (tokens,)
        return torch.zeros_like(table).index_put(at, rows, accumulate=True), None


class ModelNew(torch.nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.table = torch.nn.Embedding(tokens, width)

    def forward(self, tokens):
        return Bag.apply(self.table.weight, tokens)
