"""A candidate of PyTorch's as a function of the reference's tensors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from gradwatch.harness.check.frameworks import ARGUMENTS, Bound
from gradwatch.harness.check.frameworks.loop import matched
from gradwatch.harness.check.frameworks.runs import observe
from gradwatch.harness.tracing.calls import Call


def bind(candidate: Callable[..., Any], reference: Bound) -> Call:
    """The candidate as a function of the reference's tensors.

    A module gets the reference's parameters and buffers, as `loop.matched` has them. A
    plain function gets them after the inputs.

    Raises:
        ValueError: They do not fit.
    """
    call: Call = replace(reference.call, function=candidate)
    if not isinstance(candidate, torch.nn.Module):
        require_fit(candidate, (*call.args, *call.state), call.kwargs)
        return call
    require_fit(candidate, call.args, call.kwargs)
    count = len(reference.tensors) - len(call.state)
    state = matched(candidate, call.state, reference.tensors[count:])
    return replace(call, state=tuple(state))


def require_fit(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
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


def observed(
    candidate: Any, given: Sequence[Any], tensors: Sequence[Any], *how: Any
) -> dict[str, Any]:
    """What `runs.observe` says of a candidate; `given` is a reference's `Call`."""
    bound: Any = SimpleNamespace(call=Call(candidate, *given), tensors=tensors)
    return vars(observe(bind(candidate, bound), tensors, *how))
