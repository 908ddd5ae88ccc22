"""SwiGLU: silu(a) * b of two halves."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(a) * b


def get_inputs():
    return [torch.randn(5, 7, 48)]


def get_init_inputs():
    return []
