"""OneFlow 0.9.0: bilinear gives wrong da.

da[0, 0]: exact 0.0
8.988474238009277e+304: oneflow_custom
shape (): oneflow_autograd
"""

import sys

import numpy as np
import oneflow

a = oneflow.tensor([[0.1, -0.1], [0.6, 0.1]], dtype=oneflow.float64, requires_grad=True)
b = oneflow.tensor([[0.1], [-0.1]], dtype=oneflow.float64, requires_grad=True)
weight = oneflow.tensor(np.zeros((0, 2, 1)), dtype=oneflow.float64, requires_grad=True)
bias = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64, requires_grad=True)
dy = oneflow.tensor(np.zeros((2, 0)), dtype=oneflow.float64)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
y = oneflow.einsum("ni,oij,nj->no", a, weight, b) + bias
[da, db, dweight, dbias] = oneflow.autograd.grad([y], [a, b, weight, bias], [dy])
got, exact, allowed = da.detach().numpy(), np.array([[0.0, 0.0], [0.0, 0.0]]), 0.0
print(f"da = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
