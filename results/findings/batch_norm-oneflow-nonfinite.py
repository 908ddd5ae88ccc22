"""OneFlow 0.9.0: batch_norm gives y that is not finite, in float32.

y[0, 0, 0]: exact 0.0
0.0: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_autograd,
torch_custom, torch_formula
nan: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([[[100.0, 100.001]]], dtype=oneflow.float32)
weight = oneflow.tensor([0.0], dtype=oneflow.float32)
bias = oneflow.tensor([0.0], dtype=oneflow.float32)
running_mean = oneflow.tensor([0.1], dtype=oneflow.float32)
running_var = oneflow.tensor([1.1754944e-38], dtype=oneflow.float32)
y = oneflow.nn.functional.batch_norm(
    x, running_mean, running_var, weight, bias, True, 0.1, 1e-05
)
got, exact, allowed = y.detach().numpy(), np.array([[[0.0, 0.0]]]), 0.0
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
