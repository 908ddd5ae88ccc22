"""Paddle 3.3.1: log_softmax gives wrong y in float32.

y[3]: exact -16435879.5, 8.39e+06 rounding radii off (17.2 are allowed)
-64.0: paddle_autograd
-16435880.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [-6.394865e06, 4.571403e06, -334000.7, -9.443243e06, 6.9926365e06, 281112.5],
    "float32",
)
y = paddle.nn.functional.log_softmax(x, 0)
got = y.numpy()
exact = np.array([-13387501.5, -2421233.5, -7326637.1875, -16435879.5, 0.0, -6711524.0])
allowed = np.array([27.5, 4.97, 15.0, 33.7, 1.03e-06, 13.8])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
