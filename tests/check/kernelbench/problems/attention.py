"""Causal attention of one head, with its projections."""

import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=True)


def get_inputs():
    return [torch.randn(2, 9, 16)]


def get_init_inputs():
    return [16]
