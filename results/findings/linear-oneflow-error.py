"""OneFlow 0.9.0: linear raises on a legal input.

RuntimeError: Error: size mismatch, got 1, 2 x 1, 2
runs: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_autograd,
torch_custom, torch_formula
error: oneflow_autograd
"""

import sys

import oneflow

x = oneflow.tensor([0.0, 0.0], dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor([[0.0, 0.0]], dtype=oneflow.float32, requires_grad=True)
bias = oneflow.tensor([0.0], dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor([0.0], dtype=oneflow.float32)
y = oneflow.nn.functional.linear(x, weight, bias)
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
print([t.detach().numpy() for t in (y, dx, dweight, dbias)])
