"""OneFlow 0.9.0: nll raises on a legal input.

RuntimeError: Error: The expanded size of the tensor (1) must match the existing size
(0) at non-singleton dimension 1. Target sizes: (0,1). Tensor sizes: (0,0)
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
target = oneflow.tensor(np.zeros((0,)), dtype=oneflow.int64)
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32)
dloss = oneflow.tensor(0.0, dtype=oneflow.float32)
t2 = (target == 0).unsqueeze(1)
t6 = x.new_zeros((0, 0)).scatter_(1, target.unsqueeze(1).masked_fill(t2, 0), 1)
t9 = t6.masked_fill(t2, 0) * weight.reshape(-1)
loss = -(t9 * x).masked_fill(t9 == 0, 0).sum() / t9.sum()
dx = -(t9 * (dloss / t9.sum())).masked_fill(t9 == 0, 0)
print([t.detach().numpy() for t in (loss, dx)])
