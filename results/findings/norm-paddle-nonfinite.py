"""Paddle 3.3.1: norm gives y that is not finite, in float32.

y[0, 0]: exact None
nan: paddle_formula
inf: numpy_graph, torch_formula
"""

import sys

from math import inf
import numpy as np
import paddle

x = paddle.to_tensor(
    [
        [[np.inf, 0.2909114, 0.98829496, 0.22751896]],
        [[0.08238866, 0.40745875, 0.27959874, 0.9809128]],
    ],
    "float32",
)
t2 = paddle.sum(x * x, axis=1)
t7 = paddle.sqrt(paddle.where(t2 == 0.0, paddle.to_tensor(1.0, t2.dtype), t2))
y = paddle.where(t2 == 0.0, paddle.to_tensor(0.0, t7.dtype), t7)
got = y.numpy()
exact = np.array(
    [
        [np.inf, 0.29091140627861023, 0.9882949590682983, 0.2275189608335495],
        [
            0.08238866180181503,
            0.40745875239372253,
            0.27959874272346497,
            0.9809128046035767,
        ],
    ]
)
allowed = np.array(
    [[0.0, 4.29e-07, 1.46e-06, 3.36e-07], [1.22e-07, 6.01e-07, 4.12e-07, 1.45e-06]]
)
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
