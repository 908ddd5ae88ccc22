"""OneFlow 0.9.0: linear gives dweight that is not finite.

dweight[0, 1]: exact 0.0
0.0: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula
nan: oneflow_autograd
-0.0: torch_autograd, torch_custom, torch_formula
"""

import sys

import numpy as np
import oneflow

wrong = False
for dtype, allowed in [
    (oneflow.float32, np.array([[np.inf, 0.0], [np.inf, 0.0]])),
    (oneflow.float64, np.array([[np.inf, 0.0], [np.inf, 0.0]])),
]:
    x = oneflow.tensor([np.inf, -0.1], dtype=dtype, requires_grad=True)
    weight = oneflow.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=dtype, requires_grad=True)
    bias = oneflow.tensor([1.0, 1.0], dtype=dtype, requires_grad=True)
    dy = oneflow.tensor([0.0, 0.0], dtype=dtype)
    y = oneflow.nn.functional.linear(x, weight, bias)
    [dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
    got, exact = dweight.detach().numpy(), np.array([[0.0, 0.0], [0.0, 0.0]])
    print(f"{dtype}: dweight = {got}, exact {exact}")
    right = (got == exact) | (abs(got - exact) <= allowed) | (allowed == np.inf)
    wrong |= not np.all(right)
sys.exit(wrong)
