"""Paddle 3.3.1: prod gives dx that is not finite.

dx[0, 0]: exact 0.0
"""

import sys

import numpy as np
import paddle

wrong = False
for dtype, allowed in [("float32", 0.0), ("float64", 0.0)]:
    x = paddle.to_tensor([[0.0]], dtype, stop_gradient=False)
    dy = paddle.to_tensor([0.0], dtype)
    y = paddle.prod(x, axis=0)
    [dx] = paddle.grad([y], [x], [dy], allow_unused=True)
    got, exact = dx.numpy(), np.array([[0.0]])
    print(f"{dtype}: dx = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
