"""Tracing: turns a PyTorch function into a graph of the engine; only it imports torch.

It is imported only if PyTorch is installed. PyTorch lists the operators that a function
runs (`capture`), a table maps each of them to the engine (`table`), and the gradient
follows from the engine's own rules: PyTorch's backward is never used.
"""

from gradwatch.harness.tracing.traced import Graph, Traced, trace
from gradwatch.harness.tracing.untraceable import Untraceable

__all__ = ["Graph", "Traced", "Untraceable", "trace"]
