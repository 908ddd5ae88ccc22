"""torch_geometric 2.8.1: sparse_cross_entropy forgets all but one of equal edges.

The forward counts an edge as often as it stands in the list. The backward subtracts
its gradient by `grad_input[rows, columns] -= grad_out`, which does not add up over
equal indices: `index_put_(..., accumulate=True)` does.
"""

import sys

import torch
from torch_geometric.utils.cross_entropy import sparse_cross_entropy

scores = torch.tensor([[0.5, -1.0]], dtype=torch.float64, requires_grad=True)
twice = torch.tensor([[0, 0], [1, 1]])  # rows, columns

(got,) = torch.autograd.grad(sparse_cross_entropy(scores, twice), scores)
slopes = []
for i in range(2):
    step = torch.zeros_like(scores)
    step[0, i] = 1e-6
    sides = [sparse_cross_entropy(scores.detach() + s * step, twice) for s in (1, -1)]
    slopes.append(float(sides[0] - sides[1]) / 2e-6)
print(f"got {got[0].tolist()}, slopes of its forward {slopes}")
sys.exit(not torch.allclose(got[0], got.new_tensor(slopes), atol=1e-6))
