"""Functions of JAX's as functions of PyTorch tensors, where both are installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.autograd.function import once_differentiable

from gradwatch.harness.check.frameworks import pytorch
from gradwatch.harness.check.frameworks.jax import Call, started
from gradwatch.harness.check.frameworks.runs import floating
from gradwatch.harness.tracing.lax import is_inexact


def tensor_of(array: Any) -> torch.Tensor:
    """An array as a tensor; bfloat16, which NumPy lacks, by its bits."""
    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Any:
    """A tensor as an array; bfloat16 by its bits."""
    held = tensor.detach().cpu().contiguous()
    if held.dtype == torch.bfloat16:
        return held.view(torch.int16).numpy().view(jnp.bfloat16)
    return held.numpy()


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Any, *tensors: torch.Tensor) -> Any:
        arrays = [array_of(t) for t in tensors]
        ctx.wide = any(t.dtype == torch.float64 for t in tensors)
        with jax.enable_x64(ctx.wide):
            wanted = [is_inexact(a.dtype) for a in arrays]
            outputs, ctx.back = started(call, arrays, wanted)
        made = tuple(map(tensor_of, outputs))
        ctx.mark_non_differentiable(*(y for y in made if not floating(y)))
        return made

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        with jax.enable_x64(ctx.wide):
            found = ctx.back([array_of(dy) for dy in cotangents])
        return None, *(None if g is None else tensor_of(g) for g in found)


def in_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of JAX's as one of tensors, whose backward is jax.vjp's."""

    def call(*args: Any, **kwargs: Any) -> Any:
        of_arrays = Call(function, args, kwargs, within=pytorch.mapped)
        given = pytorch.tensors((args, kwargs))
        out: Any = _Bridge.apply(of_arrays, *given)  # type: ignore[no-untyped-call]  # PyTorch's has no types
        return out[0] if len(out) == 1 else out

    call.__qualname__ = call.__name__ = getattr(function, "__name__", "candidate")
    call.of_jax = function  # type: ignore[attr-defined]  # for a script
    return call
