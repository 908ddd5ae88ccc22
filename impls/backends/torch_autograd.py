"""PyTorch: its own fused calls, differentiated by its autograd."""

from impls.backends._torch import torch
from impls.backends._torchlike import TorchLike

backend = TorchLike(torch, "autograd")
