"""PyTorch 2.13.0: masked_attention gives y that is not finite, in float64.

y[1, 1, 0, 0]: exact 1.0
1.0: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula, torch_custom,
torch_formula
nan: torch_autograd
"""

import sys

import numpy as np
import torch

q = torch.tensor(np.full((2, 2, 2, 1), 1.0), dtype=torch.float64)
k = torch.tensor(
    [
        [
            [[3.9600000000000004], [3.9599999802]],
            [[3.9599999881200008], [3.95999999208]],
        ],
        [
            [[3.9599999722800003], [3.9599999960400005]],
            [[3.9599999960400005], [np.inf]],
        ],
    ],
    dtype=torch.float64,
)
v = torch.tensor(np.full((2, 2, 2, 1), 1.0), dtype=torch.float64)
mask = torch.tensor([[True, False], [False, True]], dtype=torch.bool)
y = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
got = y.detach().numpy()
exact = np.array([[[[1.0], [1.0]], [[1.0], [1.0]]], [[[1.0], [1.0]], [[1.0], [0.0]]]])
allowed = np.array(
    [
        [[[3.87e-14], [3.87e-14]], [[3.87e-14], [3.87e-14]]],
        [[[3.87e-14], [3.87e-14]], [[3.87e-14], [np.inf]]],
    ]
)
print(f"y = {got}, exact {exact}")
right = (got == exact) | (abs(got - exact) <= allowed) | (allowed == np.inf)
sys.exit(not np.all(right))
