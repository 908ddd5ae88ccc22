"""Paddle 3.3.1: silu gives dx that is not finite, in float32.

dx[]: exact 0.0
nan: paddle_autograd
0.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(-1381.9342, "float32", stop_gradient=False)
dy = paddle.to_tensor(-0.7894325, "float32")
y = paddle.nn.functional.silu(x)
[dx] = paddle.grad([y], [x], [dy], allow_unused=True)
got, exact, allowed = dx.numpy(), np.array(0.0), 2.12e-34
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
