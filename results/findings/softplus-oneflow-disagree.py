"""OneFlow 0.9.0: softplus gives wrong y in float64.

y[1]: exact 3.720075976020836e-44, 3e+15 rounding radii off (16.5 are allowed)
3.720075976020836e-44: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
0.0: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([100.0, -100.0], dtype=oneflow.float64)
y = oneflow.nn.functional.softplus(x, beta=1, threshold=40)
got = y.detach().numpy()
exact = np.array([100.0, 3.720075976020836e-44])
allowed = np.array([1.83e-13, 2.05e-58])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
