"""OneFlow 0.9.0: matmul gives wrong da.

da[0, 1]: exact 0.0
0.0: numpy_graph, numpy_manual, oneflow_autograd, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
"""

import sys

import numpy as np
import oneflow

a = oneflow.tensor([[0.1, -0.1, 0.6]], dtype=oneflow.float32, requires_grad=True)
b = oneflow.tensor(np.zeros((3, 0)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((1, 0)), dtype=oneflow.float32)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
y = oneflow.matmul(a, b)
[da, db] = oneflow.autograd.grad([y], [a, b], [dy])
got, exact, allowed = da.detach().numpy(), np.array([[0.0, 0.0, 0.0]]), 0.0
print(f"da = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
