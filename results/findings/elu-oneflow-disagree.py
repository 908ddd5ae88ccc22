"""OneFlow 0.9.0: elu gives wrong y in float64.

y[0]: exact -0.0009995001666250085, 136 rounding radii off (16.5 are allowed)
-0.0009995001666250085: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
-0.000999500166624978: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([-0.001], dtype=oneflow.float64)
y = oneflow.nn.functional.elu(x, 1.0)
got, exact, allowed = y.detach().numpy(), np.array([-0.0009995001666250085]), 3.66e-18
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
