"""OneFlow 0.9.0: leaky_relu gives wrong y in float64.

y[0]: exact -0.01, 2.01e+08 rounding radii off (16.5 are allowed)
-0.01: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_autograd,
torch_custom, torch_formula
-0.009999999776482582: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([-1.0], dtype=oneflow.float64)
y = oneflow.nn.functional.leaky_relu(x, 0.01)
got, exact, allowed = y.detach().numpy(), np.array([-0.01]), 1.83e-17
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
