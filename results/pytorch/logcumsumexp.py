"""logcumsumexp: the gradient depends on the size of x, though only differences matter.

Seen: relative error 4e-12 in float64 and 6e-4 in float32 at x = 10000. The backward
computes exp(x - y) from the rounded output y: its rounding, u * |y|, becomes a relative
error of the gradient. Differences of the inputs (x - max(x)) would keep all digits.
gradcheck passes: it compares with 1e-5.
"""

import sys

import numpy as np
import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ("logcumsumexp",)

draw = np.random.default_rng(0)
x = torch.from_numpy(10_000 + draw.uniform(-1, 1, 50)).requires_grad_()
dy = torch.from_numpy(draw.standard_normal(50))
(got,) = torch.autograd.grad(torch.logcumsumexp(x, 0), x, dy)
e = np.exp(x.detach().numpy().astype(np.longdouble) - 10_000)
terms = dy.numpy() / np.cumsum(e)
right = e * np.cumsum(terms[::-1])[::-1]
size = e * np.cumsum(np.abs(terms)[::-1])[::-1]  # what an honest sum rounds
error = float(np.max(np.abs(got.numpy() - right) / size))
print(f"torch {torch.__version__}: error / magnitude of the terms {error:.2e}")
sys.exit(error > 5e-14)  # 50 terms: 50 roundings of 1.1e-16, and some of exp
