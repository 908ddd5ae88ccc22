"""PyTorch 2.13.0: logsumexp gives wrong dx in float32.

dx[0, 1]: exact 0.6224593312018546, 1.63e+03 rounding radii off (16.7 are allowed)
0.622735857963562: torch_autograd, torch_compile
0.622459352016449: numpy_graph, numpy_manual
"""

import sys

import numpy as np
import torch

x = torch.tensor([[10000.0, 10000.5]], dtype=torch.float32, requires_grad=True)
dy = torch.tensor([1.0], dtype=torch.float32)


@torch.compile(fullgraph=True, dynamic=False)
def call(x):
    return torch.logsumexp(x, dim=-1)


y = call(x)
[dx] = torch.autograd.grad([y], [x], [dy])
got = dx.detach().numpy()
exact = np.array([[0.37754066879814546, 0.6224593312018546]])
allowed = np.array([[2.28e-06, 2.83e-06]])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
