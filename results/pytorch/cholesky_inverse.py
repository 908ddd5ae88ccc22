"""cholesky_inverse, cholesky_solve: a gradient for the triangle that is never read.

Seen: at every full matrix. The forward reads one triangle, so the gradient by the other
is 0; the backward multiplies whole matrices and does not mask the result. An optimiser
that updates such a matrix moves elements that do not matter, and a norm of the gradient
counts them. gradcheck fails for a full matrix; OpInfo gives it triangular ones alone.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("cholesky_inverse", "cholesky_solve")
# Entries whose second order is wrong for the same reason.
SECOND = ("cholesky_inverse", "cholesky_solve")

factor = torch.tensor([[2.0, 0.5], [0.7, 1.5]], dtype=torch.float64, requires_grad=True)
b = torch.ones(2, 1, dtype=torch.float64)
found = []
for function in (torch.cholesky_inverse, lambda f: torch.cholesky_solve(b, f)):
    (got,) = torch.autograd.grad(function(factor).sum(), factor)
    moved = factor.detach().clone()
    moved[0, 1] += 1.0
    change = (function(moved) - function(factor.detach())).abs().max().item()
    print(
        f"torch {torch.__version__}: got {got[0, 1].item()}, the result moves {change}"
    )
    found.append(got[0, 1].item() != 0 and change == 0)
sys.exit(any(found))
