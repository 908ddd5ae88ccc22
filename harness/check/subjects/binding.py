"""A function and its tensors as a function of tensors alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from gradwatch.harness.check.runs import Tensor, numbers
from gradwatch.harness.tracing import Call as Call
from gradwatch.harness.tracing import Traced
from gradwatch.impls.contract import Array

Function = Callable[..., Any]

State = dict[str, Tensor]

#: How a call gets what it lacks.
ARGUMENTS = (
    "give a shape or a tensor for each input, and what is no tensor by kwargs"
    ' (kwargs={"dim": -1}, --arg dim=-1)'
)


@dataclass(frozen=True)
class Bound:
    """A subject at one trial: its tensors by name, and which need a gradient.

    `updated` are places of tensors that may be written to.
    """

    call: Call
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    wanted: tuple[bool, ...]
    traced: Traced | None = None
    updated: frozenset[int] = frozenset()


def arrays(bound: Bound) -> dict[str, Array]:
    """The tensors by name, in NumPy."""
    pairs = zip(bound.names, bound.tensors, strict=True)
    return {name: array_of(tensor) for name, tensor in pairs}


def named(bound: Bound, tangents: Sequence[Array | None]) -> dict[str, Array]:
    """Tangents by the name of their tensor, where there are any."""
    pairs = zip(bound.names, tangents, strict=True)
    return {name: v for name, v in pairs if v is not None}


def array_of(tensor: Tensor) -> Array:
    """The `numbers` of a tensor in NumPy, which lacks bfloat16: float32 holds it."""
    held = numbers(tensor).cpu()
    return np.asarray((held.float() if held.dtype == torch.bfloat16 else held).numpy())


def bind(candidate: Function, reference: Bound) -> Call:
    """The candidate as a function of the reference's tensors.

    A module gets the reference's parameters and buffers, by name, or in order where the
    names differ. A plain function gets them after the inputs.

    Raises:
        ValueError: They do not fit.
    """
    call = replace(reference.call, function=candidate)
    if not isinstance(candidate, torch.nn.Module):
        require_fit(candidate, (*call.args, *call.state), call.kwargs)
        return call
    require_fit(candidate, call.args, call.kwargs)
    own = {
        **dict(candidate.named_parameters()),
        **dict(candidate.named_buffers()),
    }
    names = reference.call.state
    count = len(reference.tensors) - len(names)
    shapes = dict(
        zip(names, (tuple(t.shape) for t in reference.tensors[count:]), strict=True)
    )
    mine = {name.removeprefix("_orig_mod."): name for name in own}
    if set(mine) == set(names):
        state = tuple(mine[name] for name in names)
    elif [tuple(t.shape) for t in own.values()] == list(shapes.values()):
        state = tuple(own)
    else:
        raise ValueError(
            "the candidate's parameters are not the reference's: "
            f"{_listed({n: tuple(t.shape) for n, t in own.items()})}; expected "
            f"{_listed(shapes)}"
        )
    return replace(call, state=state)


def require_fit(
    function: Function, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Refuse arguments that the signature does not take, where there is one.

    Raises:
        ValueError: They do not fit; says where the function is.
    """
    owner = getattr(function, "__self__", None)
    takes: Any = getattr(function, "forward", function)
    if inspect.isclass(owner) and issubclass(owner, torch.autograd.Function):
        takes, plain = owner.forward, torch.autograd.Function.setup_context
        if owner.setup_context is plain:
            args = (None, *args)  # ctx
    try:
        signature = inspect.signature(takes)
    except (TypeError, ValueError):  # of most of PyTorch's own functions
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        code = getattr(inspect.unwrap(takes), "__code__", None)
        at = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        name = getattr(takes, "__qualname__", repr(takes))
        raise ValueError(f"{name}{signature}{at}: {error}; {ARGUMENTS}") from None


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return (
        ", ".join(f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items()) or "none"
    )
