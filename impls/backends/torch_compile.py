"""PyTorch: its own calls, compiled by inductor."""

from gradwatch.impls.backends._inductor import Compiled
from gradwatch.impls.backends._torch import torch

TRAITS = {
    "on_request": "it needs a C++ compiler, and 3 s for each shape",
    "compiles": True,
    "compiles_layouts": True,
}
backend = Compiled(torch, "autograd")
