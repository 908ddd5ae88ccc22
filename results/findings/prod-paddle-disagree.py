"""Paddle 3.3.1: prod gives wrong dx.

dx[0, 0]: exact 0.26488196321441915
0.2648819632144191: paddle_formula
0.26488196321441915: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor([[-1.3394943570167328]], "float64", stop_gradient=False)
dy = paddle.to_tensor([0.26488196321441915], "float64")
y = paddle.prod(x, axis=-1)
[dx] = paddle.grad([y], [x], [dy], allow_unused=True)
got, exact, allowed = dx.numpy(), np.array([[0.26488196321441915]]), 0.0
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
