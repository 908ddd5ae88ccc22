"""OneFlow 0.9.0: prod raises on a legal input.

Its products without one factor need masked_fill, which takes no empty tensor.
RuntimeError: The expanded size of the tensor (1) must match the existing size (0)
runs: oneflow_autograd, oneflow_formula, numpy_graph, numpy_manual, torch_autograd,
torch_custom, torch_formula
"""

import numpy as np
import oneflow

copies = oneflow.tensor(np.zeros((0, 4, 3, 3)), dtype=oneflow.float32)
own = oneflow.ones(3, 3) > 0
print(copies.masked_fill(own, 1).prod(-1).numpy())
