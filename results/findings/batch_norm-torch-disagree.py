"""PyTorch 2.13.0: batch_norm gives wrong y.

y[0, 0]: exact 10000.0, 45.9 rounding radii off (16.5 are allowed)
10000.0: numpy_graph, numpy_manual, oneflow_autograd, oneflow_custom, oneflow_formula,
torch_custom, torch_formula
10000.02734375: torch_autograd
"""

import sys

import numpy as np
import torch

wrong = False
for dtype, allowed in [(torch.float32, 0.00983), (torch.float64, 1.83e-11)]:
    x = torch.tensor([[10000.0]], dtype=dtype)
    weight = torch.tensor([10000.0], dtype=dtype)
    bias = torch.tensor([10000.0], dtype=dtype)
    running_mean = torch.tensor([10000.0], dtype=dtype)
    running_var = torch.tensor([10001.0], dtype=dtype)
    y = torch.nn.functional.batch_norm(
        x, running_mean, running_var, weight, bias, False, 0.1, 1e-05
    )
    got, exact = y.detach().numpy(), np.array([[10000.0]])
    print(f"{dtype}: y = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
