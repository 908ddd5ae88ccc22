"""Paddle 3.3.1: masked_attention gives wrong y.

y[0, 0, 0, 0]: exact 0.0
"""

import sys

from math import inf
import numpy as np
import paddle

q = paddle.to_tensor([[[[1.0], [1.0], [1.0]]]], "float32")
k = paddle.to_tensor([[[[1.0], [1.0], [1.0]]]], "float32")
v = paddle.to_tensor([[[[-0.0], [-0.0], [1.693284]]]], "float32")
mask = paddle.to_tensor([[False, True, False]], "bool")
t3 = paddle.matmul(q, paddle.swapaxes(k, -1, -2)) / 1.0
t5 = paddle.where(mask, t3, paddle.to_tensor(-inf, t3.dtype))
t9 = paddle.exp(t5 - paddle.max(t5, axis=-1, keepdim=True).detach())
y = paddle.matmul(t9 / paddle.sum(t9, axis=-1, keepdim=True), v)
got, exact, allowed = y.numpy(), np.array([[[[0.0], [0.0], [0.0]]]]), 0.0
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
