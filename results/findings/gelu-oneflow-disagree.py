"""OneFlow 0.9.0: gelu gives wrong y in float64.

y[0]: exact 0.053982751045435165, 3.17e+03 rounding radii off (16.5 are allowed)
0.053982751045435165: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
0.05398275104537388: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([0.1], dtype=oneflow.float64)
y = oneflow.nn.functional.gelu(x, approximate="tanh")
got, exact, allowed = y.detach().numpy(), np.array([0.053982751045435165]), 3.19e-16
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
