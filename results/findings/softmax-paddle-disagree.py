"""Paddle 3.3.1: softmax gives wrong y.

y[0, 0]: exact 0.0
2.9382650407717056e-39: paddle_formula
0.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [
        [-5099.2046, -5099.2046, -5099.2046, -5099.2046],
        [5143.3677, 5143.3677, 5143.3677, 5143.3677],
    ],
    "float32",
)
t4 = paddle.exp(x - paddle.max(x, axis=0, keepdim=True).detach())
y = t4 / paddle.sum(t4, axis=0, keepdim=True)
got = y.numpy()
exact = np.array([[0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
allowed = np.array([[0.0, 0.0, 0.0, 0.0], [1.99e-06, 1.99e-06, 1.99e-06, 1.99e-06]])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
