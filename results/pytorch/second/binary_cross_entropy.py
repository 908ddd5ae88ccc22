"""binary_cross_entropy: the double backward adds 1e-12 to p (1 - p).

Seen: relative error 2e-9 in float64 at p = 0.001, 2e-6 at p = 1e-6, and 0.2 % at p =
1e-9. With p (1 - p) + eps in the place of p (1 - p), the second
derivative y / p^2 + (1 - y) / (1 - p)^2 is off by about 2 eps / p, and the gradient by
the cotangent by eps / p. The first backward only guards against a division by 0: it
takes max(p (1 - p), eps), and is right. gradgradcheck passes: it compares with 1e-3.
"""

import sys

import numpy as np
import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("nn_functional_binary_cross_entropy",)

target = 0.3
p = torch.tensor([0.3, 1e-3, 1e-6, 1e-9], dtype=torch.float64, requires_grad=True)
targets = torch.full_like(p, target).detach()
loss = torch.nn.functional.binary_cross_entropy(p, targets, reduction="sum")
(dp,) = torch.autograd.grad(loss, p, create_graph=True)
(got,) = torch.autograd.grad(dp.sum(), p)
exact = p.detach().numpy().astype(np.longdouble)
error = np.abs(got.numpy() / (target / exact**2 + (1 - target) / (1 - exact) ** 2) - 1)
print(f"torch {torch.__version__}: relative error {error} at p = {p.tolist()}")
sys.exit(bool(error.max() > 1e-13))  # some ten roundings of 1.1e-16
