"""Paddle 3.3.1: softplus gives dx that is not finite, in float32.

dx[0, 0]: exact -0.6166815161705017
nan: paddle_formula
-0.6166815161705017: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor([[np.inf], [0.36670107], [np.nan]], "float32", stop_gradient=False)
dy = paddle.to_tensor([[-0.6166815], [-0.24658552], [-0.75022274]], "float32")
t6 = paddle.log1p(paddle.exp(-paddle.abs(x)))
y = paddle.maximum(x, paddle.to_tensor(0.0, x.dtype)) + t6
[dx] = paddle.grad([y], [x], [dy], allow_unused=True)
got = dx.numpy()
exact = np.array([[-0.6166815161705017], [-0.14564859665417867], [0.0]])
allowed = np.array([[1.21e-06], [1.02e-06], [np.inf]])
print(f"dx = {got}, exact {exact}")
right = (got == exact) | (abs(got - exact) <= allowed) | (allowed == np.inf)
sys.exit(not np.all(right))
