"""A linear layer and a ReLU, fused."""

import torch


class Model(torch.nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.linear = torch.nn.Linear(fan_in, fan_out)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(12, 20)]


def get_init_inputs():
    return [20, 17]
