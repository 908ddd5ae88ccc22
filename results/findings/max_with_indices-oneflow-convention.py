"""OneFlow 0.9.0: max_with_indices breaks ties in its own way (even).

dx: right at a tie, broken by the even convention
1.0: numpy_graph, numpy_manual, oneflow_custom, torch_autograd, torch_custom,
torch_formula
0.5: oneflow_autograd, oneflow_formula
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([[10000.0], [10000.0]], dtype=oneflow.float32, requires_grad=True)
dvalues = oneflow.tensor([1.0], dtype=oneflow.float32)
values, indices = oneflow.max(x, dim=0)
[dx] = oneflow.autograd.grad([values], [x], [dvalues])
got = dx.detach().numpy()
exact = np.array([[1.0], [0.0]])
allowed = np.array([[9.83e-07], [0.0]])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
