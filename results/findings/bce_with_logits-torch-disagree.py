"""PyTorch 2.13.0: bce_with_logits gives wrong loss in float64.

loss[]: exact 2.522787357229445e-248, 2.25e+15 rounding radii off (16.5 are allowed)
2.522787357229445e-248: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_custom, torch_formula
0.0: oneflow_autograd, torch_autograd
"""

import sys

import numpy as np
import torch

x = torch.tensor(-570.1157386781327, dtype=torch.float64)
target = torch.tensor(0.0, dtype=torch.float64)
loss = torch.nn.functional.binary_cross_entropy_with_logits(x, target)
got, exact, allowed = loss.detach().numpy(), np.array(2.522787357229445e-248), 1.85e-262
print(f"loss = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
