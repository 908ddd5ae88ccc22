"""Paddle 3.3.1: max_with_indices gives wrong indices.

indices[0, 1]: exact 1.0
0: paddle_formula
1: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor([[[np.inf, 0.08898993], [-0.35656512, np.nan]]], "float32")
values = paddle.max(x, axis=1)
indices = paddle.argmax(x, axis=1)
got, exact, allowed = indices.numpy(), np.array([[0, 1]]), 0.0
print(f"indices = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
