"""logaddexp: the double backward is nan where the arguments are more than 709 apart.

Seen: nan in place of 0 for logaddexp(0, 800) and for an argument of -inf, which is how
masks are written. The backward is grad / (1 + exp(b - a)): where exp is infinite, its
derivative is 0 * inf. grad * sigmoid(a - b) is finite in all orders. gradgradcheck
fails, where it is asked with such arguments.
"""

import sys

import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("masked_logaddexp",)

a = torch.tensor([0.0, 0.0], dtype=torch.float64, requires_grad=True)
b = torch.tensor([800.0, -torch.inf], dtype=torch.float64, requires_grad=True)
(db,) = torch.autograd.grad(torch.logaddexp(a, b).sum(), b, create_graph=True)
(got,) = torch.autograd.grad(db.sum(), b)
print(f"torch {torch.__version__}: db {db.tolist()}, d2b {got.tolist()}, expected 0, 0")
sys.exit(bool(got.isnan().any()))
