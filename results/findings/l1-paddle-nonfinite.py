"""Paddle 3.3.1: l1 gives dx that is not finite, in float32.

dx[0]: exact 0.5
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor([12000.0, 13000.0], "float32", stop_gradient=False)
target = paddle.to_tensor([-np.inf, 4.0], "float32", stop_gradient=False)
dloss = paddle.to_tensor(1.0, "float32")
loss = paddle.mean(paddle.abs(x - target))
[dx, dtarget] = paddle.grad([loss], [x, target], [dloss], allow_unused=True)
got, exact, allowed = dx.numpy(), np.array([0.5, 0.5]), 9.96e-07
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
