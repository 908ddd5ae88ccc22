"""OneFlow 0.9.0: linear raises on a legal input.

RuntimeError: Error: size mismatch, got 1, 0 x 1, 0
runs: numpy_graph, numpy_manual, torch_autograd, torch_custom, torch_formula
error: oneflow_autograd
crash: oneflow_custom, oneflow_formula
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64, requires_grad=True)
weight = oneflow.tensor(np.zeros((1, 0)), dtype=oneflow.float64, requires_grad=True)
bias = oneflow.tensor([0.0], dtype=oneflow.float64, requires_grad=True)
dy = oneflow.tensor([-3.0], dtype=oneflow.float64)
y = oneflow.nn.functional.linear(x, weight, bias)
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
print([t.detach().numpy() for t in (y, dx, dweight, dbias)])
