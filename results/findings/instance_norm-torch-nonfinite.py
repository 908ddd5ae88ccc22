"""PyTorch 2.13.0: instance_norm gives y that is not finite, in float64.

y[0, 0, 0]: exact None
inf: numpy_graph, numpy_manual, oneflow_autograd, oneflow_custom, oneflow_formula,
torch_custom, torch_formula
nan: torch_autograd
"""

import sys

from math import inf
import numpy as np
import torch

x = torch.tensor([[[0.1, -0.1]]], dtype=torch.float64)
weight = torch.tensor([np.inf], dtype=torch.float64)
bias = torch.tensor([0.0], dtype=torch.float64)
y = torch.nn.functional.instance_norm(x, weight=weight, bias=bias, eps=1e-05)
got, exact, allowed = y.detach().numpy(), np.array([[[np.inf, -np.inf]]]), 0.0
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
