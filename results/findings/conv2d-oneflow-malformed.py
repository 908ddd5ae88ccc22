"""OneFlow 0.9.0: conv2d gives malformed dx.

dx: shape (), expected (0, 1, 6, 7)
shape (0, 1, 6, 7): numpy_graph, numpy_manual, oneflow_autograd, torch_autograd,
torch_custom, torch_formula
crash: oneflow_custom
nan: oneflow_formula
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(np.zeros((0, 1, 6, 7)), dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor(
    np.full((5, 1, 3, 3), 1.0), dtype=oneflow.float32, requires_grad=True
)
bias = oneflow.tensor(np.full((5,), 1.0), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 5, 4, 5)), dtype=oneflow.float32)
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()
t1 = oneflow.nn.functional.pad(x, [0, 0, 0, 0, 0, 0, 0, 0], value=0.0)
t5 = t1.unfold(2, 3, 1)[..., ::1].unfold(3, 3, 1)[..., ::1]
t7 = oneflow.reshape(bias, (-1, 1, 1))
y = oneflow.einsum("bchwij,ocij->bohw", t5, weight) + t7
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
got = dx if dx is None else tuple(dx.shape)
print("shape of dx:", got, "exact:", (0, 1, 6, 7))
sys.exit(got != (0, 1, 6, 7))
