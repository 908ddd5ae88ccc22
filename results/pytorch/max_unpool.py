"""max_unpool: two inputs with one index both get the gradient of the one that was written.

Seen: in one, two and three dimensions, whenever an index occurs twice (overlapping
windows of the pooling). The forward writes one of them; the backward gathers the
cotangent for all. gradcheck fails, where it is asked with such indices.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = (
    "nn_functional_max_unpool1d",
    "nn_functional_max_unpool2d",
    "nn_functional_max_unpool3d",
)
# Entries whose second order is wrong for the same reason.
SECOND = (
    "nn_functional_max_unpool1d",
    "nn_functional_max_unpool2d",
    "nn_functional_max_unpool3d",
)

torch.set_num_threads(1)  # with more of them, which one is written is a race
x = torch.tensor([[[1.0, 2.0]]], dtype=torch.float64, requires_grad=True)
index = torch.tensor([[[1, 1]]])
y = torch.nn.functional.max_unpool1d(x, index, 2)
(got,) = torch.autograd.grad(y.sum(), x)
slopes = []
for i in range(2):
    moved = x.detach().clone()
    moved[0, 0, i] += 1.0
    change = torch.nn.functional.max_unpool1d(moved, index, 2) - y.detach()
    slopes.append(change.sum().item())
print(f"torch {torch.__version__}: got {got.flatten().tolist()}, expected {slopes}")
sys.exit(got.flatten().tolist() != slopes)
