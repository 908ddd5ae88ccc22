"""prod, cumprod, scatter_reduce: a factor is left out by dividing by it.

Seen: 1e-17 in place of 0 with factors of size 1, and -1024 with a factor of 3e-20. A
product P is linear in each factor, so its second derivative by one factor twice is 0.
The backward is grad * P / x, and the double backward therefore (P' - P / x) / x: the
difference of two equal terms, each rounded on its own. u |P / x^2| is left of it, and is
added to what belongs there, so that elements that are not 0 lose digits as well. Products
of the other factors (from the left times from the right) lose nothing. gradgradcheck
passes: its absolute tolerance is 1e-5, and its factors are not small.
"""

import sys

import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("scatter_reduce_prod", "cumprod")


def _scatter_reduce(x):
    places = torch.zeros(3, dtype=torch.int64)
    start = torch.zeros(1, dtype=x.dtype)
    return start.scatter_reduce(0, places, x, "prod", include_self=False)


wrong = False
for name, function in {
    "prod": torch.prod,
    "cumprod": lambda x: torch.cumprod(x, 0).sum(),
    "scatter_reduce": _scatter_reduce,
}.items():
    x = torch.tensor([3e-20, 0.7, 0.9], dtype=torch.float64, requires_grad=True)
    (dx,) = torch.autograd.grad(0.7 * function(x).sum(), x, create_graph=True)
    (got,) = torch.autograd.grad(dx[0] / 3, x)
    print(f"torch {torch.__version__} {name}: got {got[0].item()}, expected 0")
    wrong |= abs(got[0].item()) > 1  # the other elements are below 1
sys.exit(wrong)
