"""atanh: the gradient loses digits where x is near 1 or -1.

Seen: 21 times the rounding radius in float32. The backward is grad / (1 - x * x): the
rounding of x * x is large against what is left. (1 - x) * (1 + x) loses nothing.
gradcheck passes: it compares with 1e-5.
"""

import sys

import numpy as np
import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("atanh",)

x = torch.tensor([0.9, 0.99, 0.999, 0.9999, 0.99999], requires_grad=True)
(got,) = torch.autograd.grad(torch.atanh(x).sum(), x)
wide = x.detach().numpy().astype(np.float64)
error = float(np.max(np.abs(got.numpy() * (1 - wide) * (1 + wide) - 1)))
print(f"torch {torch.__version__}: relative error {error:.2e}, float32 has 6e-8")
sys.exit(error > 1e-6)  # one sum, two differences and a quotient: 4 roundings of 6e-8
