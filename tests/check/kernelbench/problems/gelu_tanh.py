"""The tanh form of GELU."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x, approximate="tanh")


def get_inputs():
    return [torch.randn(16, 130)]


def get_init_inputs():
    return []
