"""det: the gradient of a singular matrix is 0, where it is the matrix of cofactors.

Seen: in float32, float64 and their complex types. The backward is det times the inverse,
and det is 0; of diag(1, 2, 0) the determinant grows by 2 for each 1 of the last element.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()

a = torch.diag(torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)).requires_grad_()
(dx,) = torch.autograd.grad(torch.linalg.det(a), a)
moved = torch.diag(torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64))
got, expected = float(dx[2, 2]), float(torch.linalg.det(moved))
print(f"torch {torch.__version__}: got {got}, expected {expected}")
sys.exit(got != expected)
