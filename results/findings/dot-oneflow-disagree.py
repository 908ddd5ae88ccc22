"""OneFlow 0.9.0: dot gives wrong y.

y[]: exact 0.0
0.0: numpy_graph, numpy_manual, oneflow_formula, torch_autograd, torch_custom,
torch_formula
crash: oneflow_autograd
-4.386706045612053e-14: oneflow_custom
"""

import sys

import numpy as np
import oneflow

a = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
b = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(0.0, dtype=oneflow.float32)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
t1 = a.reshape(1, -1)
t2 = b.reshape(-1, 1)
t5 = dy.reshape(1, 1)
y = t1.matmul(t2).reshape(())
da = t5.matmul(t2.T).reshape(-1)
db = t1.T.matmul(t5).reshape(-1)
got, exact, allowed = y.detach().numpy(), np.array(0.0), 0.0
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
