"""entmax 1.3: sparsemax_bisect is nan where scores are around 1e7 in float32.

The bracket of its bisection is max(x) - 1 to max(x) - 1 / d, which round to one number
there: the sum of the clamped differences is 0, and is divided by. Subtracting the
maximum first changes nothing of the function, and keeps the bracket.
"""

import sys

import torch
from entmax import sparsemax_bisect

x = torch.tensor([[0.0, 1.0, 0.5, -2.0]]) + 2**26
x[0, 1] += 64
x.requires_grad_()
y = sparsemax_bisect(x, dim=-1)
(dx,) = torch.autograd.grad(y, x, torch.tensor([[1.0, -2.0, 3.0, 0.5]]))
shifted = sparsemax_bisect(x.detach() - x.detach().max(), dim=-1)
print(f"y {y.tolist()}, dx {dx.tolist()}; of x - max(x): y {shifted.tolist()}")
sys.exit(not torch.equal(y.detach(), shifted))
