"""Paddle 3.3.1: elu gives wrong dx in float32.

dx[1, 0, 0]: exact 1.4159123953372537e-09, 3.36e+06 rounding radii off (16.5 are
allowed)
0.0: paddle_formula, torch_formula
1.4159123873369595e-09: numpy_graph
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [[[640.03613, -805.5636]], [[-19.608055, -1194.7855]]],
    "float32",
    stop_gradient=False,
)
dy = paddle.to_tensor(
    [[[-0.022699712, 1.5111014]], [[0.46420148, 0.1916437]]], "float32"
)
y = paddle.where(x > 0.0, x, 1.0 * paddle.expm1(paddle.where(x > 0.0, -x, x)))
[dx] = paddle.grad([y], [x], [dy], allow_unused=True)
got = dx.numpy()
exact = np.array([[[-0.022699711844325066, 0.0]], [[1.4159123953372537e-09, 0.0]]])
allowed = np.array([[[4.46e-08, 0.0]], [[6.96e-15, 0.0]]])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
