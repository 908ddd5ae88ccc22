"""OneFlow 0.9.0: cross_entropy gives wrong loss.

loss[]: exact -0.0
-0.0: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_custom,
torch_formula
-1.430511474609375e-06: oneflow_autograd
0.0: torch_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([[0.1]], dtype=oneflow.float32)
target = oneflow.tensor([0], dtype=oneflow.int64)
loss = oneflow.nn.functional.cross_entropy(
    x, target, ignore_index=1, label_smoothing=0.0
)
got, exact, allowed = loss.detach().numpy(), np.array(-0.0), 0.0
print(f"loss = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
