"""PyTorch's functions beside JAX's, where both are installed: by NumPy's bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_flatten, tree_unflatten

from gradwatch.harness.check.of_jax.session import started


def tensor_of(array: Any) -> torch.Tensor:
    """An array as a tensor; bfloat16, which NumPy has not, by its bits."""
    array = np.array(array)
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def array_of(tensor: torch.Tensor) -> Any:
    """A tensor as an array, likewise."""
    held = tensor.detach().cpu().contiguous()
    if held.dtype == torch.bfloat16:
        return held.view(torch.int16).numpy().view(jnp.bfloat16)
    return held.numpy()


class _Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Any, *tensors: torch.Tensor) -> Any:
        ctx.wide = any(t.dtype == torch.float64 for t in tensors)
        with jax.enable_x64(ctx.wide):
            outputs, ctx.back = started(call, [array_of(t) for t in tensors])
        made = tuple(tensor_of(y) for y in outputs)
        ctx.mark_non_differentiable(*(y for y in made if not y.is_floating_point()))
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
        flat, tree = tree_flatten((args, kwargs))
        places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

        def of_arrays(*arrays: Any) -> list[Any]:
            pairs = dict(zip(places, arrays, strict=True))
            held = [pairs.get(i, value) for i, value in enumerate(flat)]
            given, named = tree_unflatten(held, tree)
            return list(jax.tree.leaves(function(*given, **named)))

        out: Any = _Bridge.apply(of_arrays, *(flat[i] for i in places))  # type: ignore[no-untyped-call]  # PyTorch's has no types
        return out[0] if len(out) == 1 else out

    call.__qualname__ = call.__name__ = getattr(function, "__name__", "candidate")
    return call


def started_in_torch(
    call: Callable[..., Any], arrays: Sequence[Any]
) -> tuple[list[Any], Callable[..., list[Any]]]:
    """As `session.started`, of a function of tensors."""
    leaves = [tensor_of(a) for a in arrays]
    leaves = [t.requires_grad_(t.is_floating_point()) for t in leaves]
    outputs = [y for y in tree_flatten(call(*leaves))[0] if isinstance(y, torch.Tensor)]

    def back(cotangents: Sequence[Any]) -> list[Any]:
        pairs = zip(outputs, cotangents, strict=False)
        known = [(y, dy) for y, dy in pairs if dy is not None and y.requires_grad]
        asked = [leaf for leaf in leaves if leaf.requires_grad]
        dys = [tensor_of(dy).to(y.dtype) for y, dy in known]
        ys = [y for y, _ in known]
        found = torch.autograd.grad(ys, asked, dys, allow_unused=True)
        pulled = iter(found)
        gradients = [next(pulled) if t.requires_grad else None for t in leaves]
        return [None if g is None else array_of(g) for g in gradients]

    return [array_of(y) for y in outputs], back
