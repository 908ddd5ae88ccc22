"""OneFlow 0.9.0: conv1d gives malformed dx.

dx: shape (), expected (0, 0, 0)
error: oneflow_autograd
nan: oneflow_formula
crash: oneflow_custom
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor(np.zeros((0, 0, 1)), dtype=oneflow.float32, requires_grad=True)
bias = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 0, 2)), dtype=oneflow.float32)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
t2 = oneflow.nn.functional.pad(x, [1, 1, 0, 0, 0, 0], value=0.0).unfold(2, 1, 1)
t5 = oneflow.reshape(bias, (-1, 1))
y = oneflow.einsum("bcli,oci->bol", t2[..., ::1], weight) + t5
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
got = dx if dx is None else tuple(dx.shape)
print("shape of dx:", got, "exact:", (0, 0, 0))
sys.exit(got != (0, 0, 0))
