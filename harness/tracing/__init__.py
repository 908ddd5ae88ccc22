"""Any PyTorch function as a graph of the engine; the one room that imports torch.

Nobody imports it unless PyTorch is there. PyTorch says which operators a function runs
(`capture`), a table says what each of them is in the engine (`table`), and the gradient
follows from the engine's own rules: PyTorch's backward is never asked.
"""

from harness.tracing.traced import Graph, Traced, trace
from harness.tracing.untraceable import Untraceable

__all__ = ["Graph", "Traced", "Untraceable", "trace"]
