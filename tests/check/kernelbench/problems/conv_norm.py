"""A convolution, a batch norm in training, and an average over the image."""

import torch


class Model(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)

    def forward(self, x):
        return torch.tanh(self.norm(self.conv(x))).mean((2, 3))


def get_inputs():
    return [torch.randn(3, 2, 7, 6)]


def get_init_inputs():
    return [2]
