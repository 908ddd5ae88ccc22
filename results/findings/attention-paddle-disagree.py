"""Paddle 3.3.1: attention gives wrong y.

y[0, 0, 0, 0]: exact 0.0
"""

import sys

from math import inf
import numpy as np
import paddle

q = paddle.to_tensor([[[[1.0], [1.0]]], [[[1.0], [1.0]]]], "float32")
k = paddle.to_tensor([[[[1.0], [1.0]]], [[[1.0], [1.0]]]], "float32")
v = paddle.to_tensor([[[[0.0], [-0.001]]], [[[-0.003], [-0.003]]]], "float32")
t3 = paddle.matmul(q, paddle.swapaxes(k, -1, -2)) / 1.0
t7 = paddle.to_tensor(-inf, t3.dtype)
t8 = paddle.where(paddle.tril(paddle.ones_like(t3)) > 0.0, t3, t7)
t12 = paddle.exp(t8 - paddle.max(t8, axis=-1, keepdim=True).detach())
y = paddle.matmul(t12 / paddle.sum(t12, axis=-1, keepdim=True), v)
got = y.numpy()
exact = np.array(
    [
        [[[0.0], [-0.0005000000237487257]]],
        [[[-0.003000000026077032], [-0.003000000026077032]]],
    ]
)
allowed = np.array([[[[0.0], [4.48e-09]]], [[[2.69e-08], [2.69e-08]]]])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
