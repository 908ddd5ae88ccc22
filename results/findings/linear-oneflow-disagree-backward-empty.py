"""OneFlow 0.9.0: linear gives wrong dweight.

dweight[0, 0]: exact 0.0
0.0: numpy_graph, numpy_manual, oneflow_autograd, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
"""

import sys

import numpy as np
import oneflow

wrong = False
for dtype, allowed in [(oneflow.float32, 0.0), (oneflow.float64, 0.0)]:
    x = oneflow.tensor(np.zeros((0, 1)), dtype=dtype, requires_grad=True)
    weight = oneflow.tensor([[1.3], [1.3], [1.3]], dtype=dtype, requires_grad=True)
    bias = oneflow.tensor([5000.0, 0.0004, 6e-05], dtype=dtype, requires_grad=True)
    dy = oneflow.tensor(np.zeros((0, 3)), dtype=dtype)
    for size in range(1, 65):  # leave numbers in memory that is used again
        oneflow.ones(size).mul(3.0).numpy()
    y = oneflow.nn.functional.linear(x, weight, bias)
    [dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
    got, exact = dweight.detach().numpy(), np.array([[0.0], [0.0], [0.0]])
    print(f"{dtype}: dweight = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
