"""Paddle 3.3.1: bce_with_logits gives dx that is not finite, in float64.

dx[0, 0]: exact -0.6274141954320276
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor([[-np.inf]], "float64", stop_gradient=False)
target = paddle.to_tensor([[0.6274141954320276]], "float64")
dloss = paddle.to_tensor(1.0, "float64")
t8 = paddle.maximum(x, paddle.to_tensor(0.0, x.dtype)) - x * target
loss = paddle.mean(t8 + paddle.log1p(paddle.exp(-paddle.abs(x))))
[dx] = paddle.grad([loss], [x], [dloss], allow_unused=True)
got, exact, allowed = dx.numpy(), np.array([[-0.6274141954320276]]), 4.6e-15
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
