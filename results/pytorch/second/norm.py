"""norm: nan in the double backward of a zero vector, whose gradient is 0.

Seen: linalg.norm and Tensor.norm of zeros. The backward is grad * x / norm, with 0 put
where the norm is 0: a subgradient, and the one that is documented. What was replaced is
still differentiated: 0 * inf in the double backward. Where the divisor is replaced
(x / where(norm == 0, 1, norm)), as the engine's formula does, the second derivative of
the constant 0 is 0. One row of zeros, such as padding, makes every weight nan.
gradgradcheck fails, where it is asked at zero.
"""

import sys

import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("linalg_norm_subgradients_at_zero",)

x = torch.zeros(3, dtype=torch.float64, requires_grad=True)
(dx,) = torch.autograd.grad(torch.linalg.norm(x), x, create_graph=True)
(got,) = torch.autograd.grad(dx.sum(), x)
print(f"torch {torch.__version__}: dx {dx.tolist()}, its derivative {got.tolist()}")
sys.exit(bool((dx == 0).all() and got.isnan().any()))
