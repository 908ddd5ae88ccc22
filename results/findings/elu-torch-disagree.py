"""PyTorch 2.13.0: elu gives wrong dx in float64.

dx[1]: exact 3.720075976020836e-44, 2.25e+15 rounding radii off (16.5 are allowed)
3.720075976020836e-44: numpy_graph, numpy_manual, oneflow_autograd, oneflow_custom,
oneflow_formula, torch_autograd, torch_custom
0.0: torch_formula
"""

import sys

import numpy as np
import torch

x = torch.tensor([100.0, -100.0], dtype=torch.float64, requires_grad=True)
dy = torch.tensor([0.0, 1.0], dtype=torch.float64)
y = torch.where(x > 0.0, x, 1.0 * torch.expm1(torch.where(x > 0.0, -x, x)))
[dx] = torch.autograd.grad([y], [x], [dy])
got = dx.detach().numpy()
exact = np.array([0.0, 3.720075976020836e-44])
allowed = np.array([0.0, 3.41e-58])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
