"""OneFlow 0.9.0: batch_norm gives wrong running_mean.

running_mean[0]: exact 5e-05, 557 rounding radii off (16.7 are allowed)
4.999999873689376e-05: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
5.0008296966552734e-05: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

wrong = False
for dtype, allowed in [(oneflow.float32, 2.49e-10), (oneflow.float64, 3.71e-19)]:
    x = oneflow.tensor([[0.0], [1.0]], dtype=dtype, requires_grad=True)
    weight = oneflow.tensor([0.0], dtype=dtype, requires_grad=True)
    bias = oneflow.tensor([0.0], dtype=dtype, requires_grad=True)
    running_mean = oneflow.tensor([0.0], dtype=dtype)
    running_var = oneflow.tensor([1.1754944e-38], dtype=dtype)
    dy = oneflow.tensor([[0.0], [0.0]], dtype=dtype)
    y = oneflow.nn.functional.batch_norm(
        x, running_mean, running_var, weight, bias, True, 0.0001, 1e-05
    )
    [dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
    got, exact = running_mean.detach().numpy(), np.array([5e-05])
    print(f"{dtype}: running_mean = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
