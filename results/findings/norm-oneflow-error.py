"""OneFlow 0.9.0: norm raises on a legal input.

RuntimeError: Error: The expanded size of the tensor (1) must match the existing size
(0) at non-singleton dimension 0. Target sizes: (1,0). Tensor sizes: (0,0)
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32)
t3 = (x * x).sum(0, True).sqrt()
y = t3.squeeze(0)
dx = (x / t3).masked_fill(t3 == 0, 0) * dy.unsqueeze(0)
print([t.detach().numpy() for t in (y, dx)])
