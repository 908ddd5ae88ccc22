"""matrix_exp: the gradient loses digits with the size of the cotangent.

A gradient is linear in its cotangent: a factor changes no digit. But the backward is
the exponential of the matrix [[A^T, dy], [0, A^T]], whose scaling and squaring follows
the norm of dy, too. Seen in float32: relative error 2e-7 at |dy| of 1, 7e-5 at 1e3,
0.24 at 1e7. A loss that is scaled, as in mixed precision, has such cotangents.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("matrix_exp",)

a = torch.tensor([[0.5, -1.0], [1.5, 0.3]])
dy = torch.tensor([[1.0, 0.5], [-0.75, 2.0]])


def gradient(a, dy):
    a = a.clone().requires_grad_()
    return torch.autograd.grad(torch.matrix_exp(a), a, dy)[0].double()


exact = gradient(a.double(), dy.double())
wrong = False
for size in (1, 2**10, 2**23):  # powers of two round nothing
    error = float((gradient(a, dy * size) / size - exact).norm() / exact.norm())
    print(f"torch {torch.__version__} |dy| = {size}: relative error {error:.1e}")
    wrong |= error > 1e-5
sys.exit(wrong)
