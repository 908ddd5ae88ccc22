"""OneFlow 0.9.0: batch_norm gives wrong y in float64.

y[0, 0]: exact 316.2277660168379, 2.07e+07 rounding radii off (16.5 are allowed)
316.2277660168379: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
316.2277700111307: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([[1.0]], dtype=oneflow.float64)
weight = oneflow.tensor([1.0], dtype=oneflow.float64)
bias = oneflow.tensor([0.0], dtype=oneflow.float64)
running_mean = oneflow.tensor([0.0], dtype=oneflow.float64)
running_var = oneflow.tensor([1.1754943508222875e-38], dtype=oneflow.float64)
y = oneflow.nn.functional.batch_norm(
    x, running_mean, running_var, weight, bias, False, 0.1, 1e-05
)
got, exact, allowed = y.detach().numpy(), np.array([[316.2277660168379]]), 3.19e-12
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
