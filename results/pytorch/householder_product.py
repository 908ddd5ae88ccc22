"""householder_product: the gradient is nan where tau v.v is 1, and loses digits nearby.

Seen: in float64, in forward mode too; 1e-9 away 8 of 16 digits are lost. The backward
divides by tau v.v - 1, though I - tau v v^T is a polynomial: of v = (1, 1) the first
column is (1 - tau, -tau), whose sum changes by -2 for each 1 of tau.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()
SECOND = ("linalg_householder_product",)

v = torch.ones(2, 1, dtype=torch.float64)
tau = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
y = torch.linalg.householder_product(v, tau)
(dtau,) = torch.autograd.grad(y.sum(), tau)
print(f"torch {torch.__version__}: got {float(dtau[0])}, expected -2.0")
sys.exit(float(dtau[0]) != -2.0)
