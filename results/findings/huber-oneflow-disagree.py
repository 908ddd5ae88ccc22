"""OneFlow 0.9.0: huber gives wrong loss in float64.

loss[]: exact 7.778060009516187e-07, 5.96e+07 rounding radii off (16.9 are allowed)
7.778060009516188e-07: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
7.778059700443864e-07: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(
    [[9999.998766809176], [10000.000369512773], [10000.000778083184]],
    dtype=oneflow.float64,
)
target = oneflow.tensor(
    [[10000.000756679705], [9999.999709155734], [10000.000257333852]],
    dtype=oneflow.float64,
)
loss = 0.3 * oneflow.nn.functional.smooth_l1_loss(x, target, 0.3, "mean")
got, exact, allowed = loss.detach().numpy(), np.array(7.778060009516187e-07), 8.74e-21
print(f"loss = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
