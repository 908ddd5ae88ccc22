"""as_strided_scatter: the input's gradient is there where it should be 0, and 0 elsewhere.

Seen: at every call; the mask is the wrong way round. What is written over passes no
gradient to the input, all else passes its own: the backward
(as_strided_scatter_backward) instead copies the cotangent of the written region into
zeros. gradcheck fails; OpInfo marks that test as expected to fail.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("as_strided_scatter",)
# Entries whose second order is wrong for the same reason.
SECOND = ("as_strided_scatter",)

x = torch.zeros(4, dtype=torch.float64, requires_grad=True)
written = torch.ones(2, dtype=torch.float64)
y = torch.as_strided_scatter(x, written, (2,), (1,))
(got,) = torch.autograd.grad(y.sum(), x)
right = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=torch.float64)
print(f"torch {torch.__version__}: got {got.tolist()}, expected {right.tolist()}")
sys.exit(not torch.equal(got, right))
