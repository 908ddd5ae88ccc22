"""Paddle 3.3.1: bce_with_logits gives wrong dx.

dx[0, 1, 0]: exact 0.0
2.0113677637532694e-40: paddle_formula
0.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import paddle

x = paddle.to_tensor(
    [
        [[3309.2422, 3309.2422], [-991.0885, -991.0885]],
        [[-4618.554, -4618.554], [5045.6543, 5045.6543]],
    ],
    "float32",
    stop_gradient=False,
)
target = paddle.to_tensor(
    [[[0.5729936, 1.0], [0.0, 0.0]], [[0.0, 0.9318477], [0.8606573, 0.83639175]]],
    "float32",
)
dloss = paddle.to_tensor(0.54763293, "float32")
t8 = paddle.maximum(x, paddle.to_tensor(0.0, x.dtype)) - x * target
loss = paddle.mean(t8 + paddle.log1p(paddle.exp(-paddle.abs(x))))
[dx] = paddle.grad([loss], [x], [dloss], allow_unused=True)
got = dx.numpy()
exact = np.array(
    [
        [[0.029230347494079822, 0.0], [0.0, 0.0]],
        [[0.0, -0.06378881051388063], [0.009538583161083025, 0.011199658424930092]],
    ]
)
allowed = np.array(
    [[[2.84e-07, 2.84e-07], [0.0, 0.0]], [[0.0, 2.65e-07], [2.84e-07, 2.84e-07]]]
)
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
