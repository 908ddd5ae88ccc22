"""Tracing: turns a function of PyTorch's or JAX's into a graph of the engine.

The operators that a PyTorch function runs are written down while it runs (`tape`), a
table maps each of them to the engine (`aten.table`), and the gradient follows from the
engine's own rules: PyTorch's backward is never used. A function of JAX's is a jaxpr
(`lax`). Neither framework is imported before a name is used that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradwatch.harness.tracing.untraceable import Untraceable, callers_place

if TYPE_CHECKING:
    from gradwatch.harness.tracing.calls import Call, held, state_of, tensors_in
    from gradwatch.harness.tracing.capture import plain_autograd
    from gradwatch.harness.tracing.traced import Graph, Traced, trace

__all__ = [
    "Call",
    "Graph",
    "Traced",
    "Untraceable",
    "callers_place",
    "held",
    "plain_autograd",
    "state_of",
    "tensors_in",
    "trace",
]

_HOMES = {"plain_autograd": "capture", "Graph": "traced", "Traced": "traced"}
_HOMES |= {"trace": "traced"}
_HOMES |= dict.fromkeys(("Call", "held", "state_of", "tensors_in"), "calls")


def __getattr__(name: str) -> Any:
    """What needs PyTorch, at its first use (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f"{__name__}.{_HOMES[name]}")
    globals()[name] = value = getattr(home, name)
    return value
