"""Paddle 3.3.1: mish gives wrong y.

y[1, 0, 0]: exact -0.0
-1.3859045392813338e-35: paddle_formula
-0.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [
        [[-175.00798, -175.00798], [-125.466156, -125.466156]],
        [[-4716.7446, -4716.7446], [-15.6968355, -15.6968355]],
    ],
    "float32",
)
t6 = paddle.log1p(paddle.exp(-paddle.abs(x)))
y = x * paddle.tanh(paddle.maximum(x, paddle.to_tensor(0.0, x.dtype)) + t6)
got = y.numpy()
exact = np.array(
    [
        [
            [-1.7300461937529296e-74, -1.7300461937529296e-74],
            [-4.0669363309762416e-53, -4.0669363309762416e-53],
        ],
        [[-0.0, -0.0], [-2.3920101910575897e-06, -2.3920101910575897e-06]],
    ]
)
allowed = np.array(
    [[[3.41e-35, 3.41e-35], [2.45e-35, 2.45e-35]], [[0.0, 0.0], [1.18e-11, 1.18e-11]]]
)
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
