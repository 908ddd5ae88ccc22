"""PyTorch: the op's formula, differentiated by its autograd."""

from gradwatch.impls.backends._torch import torch
from gradwatch.impls.backends._torchlike import TorchLike

backend = TorchLike(torch, "formula")
