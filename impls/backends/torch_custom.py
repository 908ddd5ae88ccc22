"""PyTorch: the page's hand-written autograd.Function."""

from gradwatch.impls.backends._torch import torch
from gradwatch.impls.backends._torchlike import TorchLike

backend = TorchLike(torch, "custom")
