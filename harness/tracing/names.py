"""Names of a function's inputs, as its signature says them."""

from __future__ import annotations

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
