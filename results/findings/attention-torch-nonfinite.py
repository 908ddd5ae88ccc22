"""PyTorch 2.13.0: attention gives y that is not finite.

y[0, 0, 0, 0]: exact 1.0
1.0: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_custom,
torch_formula
nan: torch_autograd
"""

import sys

import numpy as np
import torch

wrong = False
for dtype, allowed in [
    (torch.float64, np.array([[[[1.98e-14], [np.inf]]]])),
    (torch.float32, np.array([[[[1.34e-05], [np.inf]]]])),
]:
    q = torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]]], dtype=dtype)
    k = torch.tensor([[[[-2.0, 0.0], [np.inf, 4.0]]]], dtype=dtype)
    v = torch.tensor([[[[1.0], [1.0]]]], dtype=dtype)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    got, exact = y.detach().numpy(), np.array([[[[1.0], [0.0]]]])
    print(f"{dtype}: y = {got}, exact {exact}")
    right = (got == exact) | (abs(got - exact) <= allowed) | (allowed == np.inf)
    wrong |= not np.all(right)
sys.exit(wrong)
