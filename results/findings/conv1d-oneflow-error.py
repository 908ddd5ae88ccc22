"""OneFlow 0.9.0: conv1d raises on a legal input.

RuntimeError: (1 vs 0)
error: oneflow_autograd
runs: oneflow_formula
crash: oneflow_custom
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor(np.zeros((0, 0, 1)), dtype=oneflow.float32, requires_grad=True)
bias = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 0, 2)), dtype=oneflow.float32)
y = oneflow.nn.functional.conv1d(x, weight, bias, 1, 1, 1)
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
print([t.detach().numpy() for t in (y, dx, dweight, dbias)])
