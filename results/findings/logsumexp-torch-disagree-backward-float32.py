"""PyTorch 2.13.0: logsumexp gives wrong dx.

dx[0, 0]: exact -0.08840063616831263, 789 rounding radii off (16.7 are allowed)
-0.08840063959360123: numpy_graph, numpy_manual, oneflow_custom, torch_custom
-0.08840062469244003: oneflow_autograd, oneflow_formula
-0.08838191628456116: torch_autograd, torch_formula
"""

import sys

import numpy as np
import torch

wrong = False
for dtype, allowed in [
    (torch.float32, np.array([[3.96e-07, 4.83e-07]])),
    (torch.float64, np.array([[7.38e-16, 9.01e-16]])),
]:
    x = torch.tensor([[10000.001, 9999.999]], dtype=dtype, requires_grad=True)
    dy = torch.tensor([-0.17662878], dtype=dtype)
    y = torch.logsumexp(x, dim=-1)
    [dx] = torch.autograd.grad([y], [x], [dy])
    got = dx.detach().numpy()
    exact = np.array([[-0.08840063616831263, -0.08822814717690984]])
    print(f"{dtype}: dx = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
