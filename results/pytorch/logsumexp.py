"""logsumexp: the gradient depends on the size of x, though only differences matter.

Seen: relative error 9e-13 in float64 and 5e-4 in float32 at x = 10000, where softmax,
which is the same function, is right to the last digits. The backward is
grad * exp(x - y) with the rounded output y: its rounding, u * |y|, becomes a relative
error of the gradient. gradcheck passes: it compares with 1e-5. Flash attention does the same; the
judge allows for that rounding.
"""

import sys

import numpy as np
import torch

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()

draw = np.random.default_rng(0)
wrong = False
for dtype, allowed in ((torch.float64, 5e-14), (torch.float32, 2.5e-5)):
    x = torch.from_numpy(10_000 + draw.uniform(-1, 1, (50, 50))).to(dtype)
    x.requires_grad_()
    (got,) = torch.autograd.grad(torch.logsumexp(x, 1).sum(), x)
    e = np.exp(x.detach().numpy().astype(np.longdouble) - 10_000)
    right = e / e.sum(1, keepdims=True)
    error = float(np.max(np.abs(got.numpy() / right - 1)))
    print(f"torch {torch.__version__} {dtype}: relative error {error:.2e}")
    wrong |= error > allowed  # 50 terms and some of exp: 200 roundings, generously
sys.exit(wrong)
