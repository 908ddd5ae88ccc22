"""cholesky, eigh: forward mode is not the transpose of backward for other tangents.

Seen: in float32 and float64, along a tangent that is not symmetric. The functions read
one triangle; backward gives the gradient of the symmetric matrix, and forward mode reads
both triangles in another way, so that a gradient times a tangent differs between them.
"""

import sys

import torch
from torch.func import jvp, vjp

# Entries of OpInfo whose second order this explains.
SECOND = ("linalg_cholesky", "linalg_cholesky_ex", "linalg_eigh")

a = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
tangent = torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
low, along = jvp(torch.linalg.cholesky, (a,), (tangent,))
_, back = vjp(torch.linalg.cholesky, a)
one = torch.ones_like(low)
got, expected = float((one * along).sum()), float((back(one)[0] * tangent).sum())
print(f"torch {torch.__version__}: got {got}, expected {expected}")
sys.exit(abs(got - expected) > 1e-9)
