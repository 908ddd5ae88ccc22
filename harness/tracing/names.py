"""Names of a function and of its inputs, as a person would write them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)


def parameters_of(function: Callable[..., Any], count: int) -> list[str]:
    """Names of the first positional parameters; x0, x1, ... where there are none."""
    try:
        known = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # most of a framework's own have no signature
        known = []
    names = [p.name for p in known if p.kind in _POSITIONAL]
    if len(names) >= count:
        return names[:count]
    return ["x"] if count == 1 else [f"x{i}" for i in range(count)]


def name_of(function: Any) -> str:
    """Module and name, without what Python puts around them."""
    if isinstance(function, functools.partial):
        given = ", ".join(f"{k}={v!r}" for k, v in function.keywords.items())
        return f"{name_of(function.func)}({given})" if given else name_of(function.func)
    if hasattr(function, "named_parameters"):
        return f"{type(function).__name__} module"
    owner = getattr(function, "__self__", None)  # Function.apply is bound to its class
    if inspect.isclass(owner):
        return f"{owner.__qualname__}.{function.__name__}"
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    name = name.removeprefix("_VariableFunctionsClass.")  # of torch.softmax and others
    _, _, part = module.partition("torch._C._")  # of torch.fft.fft and others
    if part:
        module = "torch.nn.functional" if part == "nn" else f"torch.{part}"
        name = name.removeprefix(f"{part}_")
    return f"{module}.{name}" if module.startswith("torch") else str(name)
