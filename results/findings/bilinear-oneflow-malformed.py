"""OneFlow 0.9.0: bilinear gives malformed da.

da: shape (), expected (0, 0)
"""

import sys

import numpy as np
import oneflow

a = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
b = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor(np.zeros((0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
bias = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
y = oneflow.einsum("ni,oij,nj->no", a, weight, b) + bias
[da, db, dweight, dbias] = oneflow.autograd.grad([y], [a, b, weight, bias], [dy])
got = da if da is None else tuple(da.shape)
print("shape of da:", got, "exact:", (0, 0))
sys.exit(got != (0, 0))
