"""Tracing: turns a function of PyTorch's or JAX's into a graph of the engine.

The operators that a PyTorch function runs are written down while it runs (`tape`), a
table maps each of them to the engine (`traced`), and the gradient follows from the
engine's own rules: PyTorch's backward is never used. A function of JAX's is
a jaxpr (`lax`). The names imported here need neither framework.
"""

from gradwatch.harness.tracing.untraceable import Untraceable, callers_place

__all__ = ["Untraceable", "callers_place"]
