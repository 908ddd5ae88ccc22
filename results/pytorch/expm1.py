"""expm1: the gradient loses all digits for negative x, and becomes exactly 0.

Seen: exactly 0 in float32 at x = -20, where exp(x) = 2.06e-9. The backward is
grad * (result + 1): result is -1 up to rounding, and its digits cancel. grad * exp(x),
or where(x < 0, exp(x), result + 1), costs no more. gradcheck passes: its absolute
tolerance is 1e-5.
"""

import sys

import numpy as np
import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("expm1",)
# Entries whose second order is wrong for the same reason.
SECOND = ("expm1",)

x = torch.tensor([-20.0, -10.0, -5.0], requires_grad=True)
(got,) = torch.autograd.grad(torch.expm1(x).sum(), x)
right = np.exp(x.detach().numpy().astype(np.float64))
error = float(np.max(np.abs(got.numpy() / right - 1)))
print(f"torch {torch.__version__}: got {got.tolist()}, expected {right.tolist()}")
sys.exit(error > 1e-5)  # float32 has 6e-8; exp itself is right to a few of them
