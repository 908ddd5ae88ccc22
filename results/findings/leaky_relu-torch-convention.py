"""PyTorch 2.13.0: leaky_relu breaks ties in its own way (last).

dx: right at a tie, broken by the last convention
1.0: numpy_graph, oneflow_custom, torch_custom
0.009999999776482582: numpy_manual, oneflow_autograd, torch_autograd
0.5049999952316284: oneflow_formula, torch_formula
"""

import sys

import numpy as np
import torch

x = torch.tensor([0.0], dtype=torch.float32, requires_grad=True)
dy = torch.tensor([1.0], dtype=torch.float32)
y = torch.nn.functional.leaky_relu(x, 0.01)
[dx] = torch.autograd.grad([y], [x], [dy])
got, exact, allowed = dx.detach().numpy(), np.array([1.0]), 1.97e-06
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
