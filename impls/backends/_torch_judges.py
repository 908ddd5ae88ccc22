"""PyTorch's own judges of a gradient, called as their users call them.

They take NumPy arrays and raise if they find the gradient wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradwatch.impls.backends._torch import torch
from gradwatch.impls.contract import Array

#: Takes the inputs; returns the outputs and the backward, as the `manual` dialect does.
Run = Callable[..., tuple[Sequence[Array], Callable[..., Sequence[Array | None]]]]


def assert_close(got: Array, expected: Array, dtype: str) -> None:
    """`torch.testing.assert_close` at its defaults, in the precision under test.

    Raises:
        AssertionError: the arrays differ by more than it allows, or in dtype or shape.
    """
    torch.testing.assert_close(*(_tensor(array, dtype) for array in (got, expected)))


def _tensor(array: Array, dtype: str) -> Any:
    """A tensor in the precision under test (NumPy has no bfloat16)."""
    tensor = torch.from_numpy(np.array(array))
    narrow = dtype in ("float16", "bfloat16") and tensor.dtype == torch.float32
    return tensor.to(getattr(torch, dtype)) if narrow else tensor


def gradcheck(run: Run, inputs: Sequence[Array], *, fast: bool) -> None:
    """`torch.autograd.gradcheck` at its defaults, of a Function that calls NumPy.

    Raises:
        RuntimeError: The backward differs from differences of the forward.
    """
    tensors = [torch.from_numpy(np.array(a)).requires_grad_() for a in inputs]
    torch.autograd.gradcheck(_function(run).apply, tensors, fast_mode=fast)


def _function(run: Run) -> Any:
    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Any) -> Any:
            arrays, ctx.run_back = run(*(t.detach().numpy() for t in tensors))
            outputs = tuple(torch.from_numpy(np.array(a)) for a in arrays)
            integers = [y for y in outputs if not y.is_floating_point()]
            ctx.mark_non_differentiable(*integers)
            return outputs

        @staticmethod
        def backward(ctx: Any, *dys: Any) -> Any:
            gradients = ctx.run_back(*(dy.numpy() for dy in dys))
            return tuple(
                None if g is None else torch.from_numpy(np.array(g)) for g in gradients
            )

    return Planted
