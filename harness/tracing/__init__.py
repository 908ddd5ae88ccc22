"""Tracing: turns a PyTorch function into a graph of the engine; only it imports torch.

It is imported only if PyTorch is installed. The operators that a function runs are
written down while it runs (`tape`), a table maps each of them to the engine (`table`),
and the gradient follows from the engine's own rules: PyTorch's backward is never used.
"""

from gradwatch.harness.tracing.calls import Call, held, tensors_in
from gradwatch.harness.tracing.capture import plain_autograd
from gradwatch.harness.tracing.traced import Graph, Traced, trace
from gradwatch.harness.tracing.untraceable import Untraceable

__all__ = [
    "Call",
    "Graph",
    "Traced",
    "Untraceable",
    "held",
    "plain_autograd",
    "tensors_in",
    "trace",
]
