"""OneFlow 0.9.0: linear gives wrong y in float64.

y[0, 0]: exact -3.0, 9e+15 rounding radii off (16.5 are allowed)
-3.0: numpy_graph, numpy_manual, oneflow_autograd, oneflow_formula, torch_autograd,
torch_custom, torch_formula
-6.0: oneflow_custom
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((1, 0)), dtype=oneflow.float64)
weight = oneflow.tensor(np.zeros((1, 0)), dtype=oneflow.float64)
bias = oneflow.tensor([-3.0], dtype=oneflow.float64)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
y = oneflow.matmul(x, weight.T) + bias
got, exact, allowed = y.detach().numpy(), np.array([[-3.0]]), 5.5e-15
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
