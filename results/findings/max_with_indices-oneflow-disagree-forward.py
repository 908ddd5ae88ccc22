"""OneFlow 0.9.0: max_with_indices gives wrong indices.

indices[]: exact 1.0
1: numpy_graph, numpy_manual, torch_autograd, torch_custom, torch_formula
0: oneflow_autograd, oneflow_custom, oneflow_formula
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor([np.inf, np.nan], dtype=oneflow.float32)
values, indices = oneflow.max(x, dim=0)
got, exact, allowed = indices.detach().numpy(), np.array(1), 0.0
print(f"indices = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
