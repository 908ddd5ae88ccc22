"""OneFlow 0.9.0: linear gives wrong y.

y[1]: exact -0.04999999850988385, 9.79e+06 rounding radii off (16.7 are allowed)
-0.05000000074505806: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
-0.12000000476837158: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

wrong = False
for dtype, allowed in [
    (oneflow.float32, np.array([1.39e-07, 1.19e-07])),
    (oneflow.float64, np.array([2.6e-16, 2.23e-16])),
]:
    x = oneflow.tensor([0.1, -0.1], dtype=dtype)
    weight = oneflow.tensor([[0.1, -0.1], [0.6, 0.1]], dtype=dtype)
    bias = oneflow.tensor([0.1, -0.1], dtype=dtype)
    y = oneflow.nn.functional.linear(x, weight, bias)
    got, exact = (
        y.detach().numpy(),
        np.array([0.12000000208616257, -0.04999999850988385]),
    )
    print(f"{dtype}: y = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
