"""PyTorch 2.13.0: prod gives dx that is not finite, in float32.

dx[0]: exact -4.302292599072926e+32
-4.302292710918511e+32: numpy_graph, numpy_manual
-inf: oneflow_autograd, oneflow_formula, torch_autograd, torch_formula
-4.302293097774773e+32: oneflow_custom, torch_custom
"""

import sys

from math import inf
import numpy as np
import torch

x = torch.tensor(
    [5.3523845e06, -6.2444665e06, 372662.78, -1.0625171e06, 2.0613966e07, 1.318652e07],
    dtype=torch.float32,
    requires_grad=True,
)
dy = torch.tensor(-0.64011925, dtype=torch.float32)
y = torch.prod(x, dim=0)
[dx] = torch.autograd.grad([y], [x], [dy])
got = dx.detach().numpy()
exact = np.array(
    [
        -4.302292599072926e32,
        3.687668789918665e32,
        -6.1791854138218e33,
        2.167261466185088e33,
        -1.117083642310395e32,
        -1.7462927460575378e32,
    ]
)
allowed = np.array([3.81e27, 3.26e27, 4.86e28, 1.92e28, 9.89e26, 1.37e27])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
