"""copysign: the second derivative, which is 0, is noise that grows as 1/x.

Seen: 1e-17 in place of 0 at x = 0.3, and -1024 at x = 7e-20. copysign(x, z) is linear in
x on either side of 0. Its backward is grad * (result / x), so the double backward is
g (result' / x) - g (result / x) / x: two equal terms, each rounded on its own, of which
u |g / x| is left. grad * sign(x) * sign(result) has none. gradgradcheck passes: its
absolute tolerance is 1e-5, and its inputs are not small.
"""

import sys

import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("copysign",)

x = torch.tensor([7e-20], dtype=torch.float64, requires_grad=True)
y = torch.copysign(x, torch.ones(1, dtype=torch.float64))
(dx,) = torch.autograd.grad(0.7 * y, x, create_graph=True)
(got,) = torch.autograd.grad(0.7 * dx, x)
print(f"torch {torch.__version__}: got {got.item()}, expected 0")
sys.exit(got.item() != 0)
