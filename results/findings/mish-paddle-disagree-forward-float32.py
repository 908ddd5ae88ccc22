"""Paddle 3.3.1: mish gives wrong y in float32.

y[6]: exact -1.900960379209986e-28, 3.26e+06 rounding radii off (16.5 are allowed)
-0.0: paddle_autograd
-1.9009602626582553e-28: numpy_graph
-1.9009603830288769e-28: torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [-1122.4023, -860.3017, 311.1254, 764.3828, 812.15955, 266.31677, -68.05027],
    "float32",
)
y = paddle.nn.functional.mish(x)
got = y.numpy()
exact = np.array(
    [
        -0.0,
        -0.0,
        311.1253967285156,
        764.3828125,
        812.1595458984375,
        266.3167724609375,
        -1.900960379209986e-28,
    ]
)
allowed = np.array([0.0, 0.0, 0.000623, 0.00167, 0.0018, 0.000531, 9.61e-34])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
