"""PyTorch: its own calls, compiled by inductor."""

from gradwatch.impls.backends import _inductor, _torch

TRAITS = {
    "on_request": "3 s for each shape, and a C++ compiler",
    "compiles": True,
}
backend = _inductor.Compiled(_torch.torch, "autograd")
