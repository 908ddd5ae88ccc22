"""OneFlow 0.9.0: log_softmax gives wrong y in float32.

y[0, 0]: exact 0.0, 24 rounding radii off (16.5 are allowed)
0.0: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_autograd,
torch_custom, torch_formula
1.430511474609375e-06: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([[0.0]], dtype=oneflow.float32)
y = oneflow.nn.functional.log_softmax(x, dim=0)
got, exact, allowed = y.detach().numpy(), np.array([[0.0]]), 0.0
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
