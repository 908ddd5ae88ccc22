"""polar: the gradient by the modulus is 0 where that is 0, and -1 times it below 0.

Seen: in float32 and float64, whatever the angle. The forward is r e^(i t) for every r,
so the slope by r is e^(i t); the backward divides the result by its modulus instead,
which is sgn(r) e^(i t).
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()

r = torch.tensor([1.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
t = torch.zeros(3, dtype=torch.float64)
y = torch.polar(r, t)  # r, and no imaginary part
(got,) = torch.autograd.grad(y.real.sum(), r)
moved = torch.polar(r.detach() + 1, t).real - y.real.detach()
print(f"torch {torch.__version__}: got {got.tolist()}, expected {moved.tolist()}")
sys.exit(not torch.equal(got, moved))
