"""Paddle 3.3.1: cross_entropy gives wrong dx.

dx[0, 0]: exact 0.0
-5.05208734044562e-40: paddle_formula
0.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [
        [-9.450606e06, 3.57557e06, 2.7403012e07, 1.1548307e07, -4.591298e06],
        [1.7052155e06, -2.024553e06, -5.2710345e06, -1.1476276e07, 9.345951e06],
    ],
    "float32",
    stop_gradient=False,
)
target = paddle.to_tensor([4, 4], "int64")
dloss = paddle.to_tensor(-0.34388256, "float32")
t3 = x - paddle.max(x, axis=1, keepdim=True).detach()
t7 = t3 - paddle.log(paddle.sum(paddle.exp(t3), axis=1, keepdim=True))
t9 = paddle.unsqueeze(target != -100, axis=1)
t10 = paddle.unsqueeze(target, axis=1)
t12 = paddle.where(t9, t10, paddle.to_tensor(0, t10.dtype))
t16 = 0.0 * paddle.mean(t7, axis=1, keepdim=True)
t17 = 1.0 * t7[np.array([[0], [1]]), t12] + t16
t23 = -paddle.sum(paddle.where(t9, t17, paddle.to_tensor(0.0, t17.dtype)))
loss = t23 / paddle.sum(t9.astype(x.dtype))
[dx] = paddle.grad([loss], [x], [dloss], allow_unused=True)
got = dx.numpy()
exact = np.array(
    [
        [0.0, 0.0, -0.17194128036499023, 0.0, 0.17194128036499023],
        [0.0, 0.0, 0.0, 0.0, 0.0],
    ]
)
allowed = np.array(
    [[0.0, 0.0, 1.75e-06, 0.0, 8.77e-07], [0.0, 0.0, 0.0, 0.0, 2.28e-06]]
)
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
