"""logcumsumexp: forward mode adds 1e-13 to a sum of exponentials that may be smaller.

Seen: 53 % off where an element is 30 below the largest, and 0 in place of 1 where it is
60 below, in float64. logcumsumexp_jvp divides cumsum(e t) by cumsum(e) + 1e-13, where e =
exp(x - max(x)): at the head of a row whose largest element comes later, cumsum(e) is as
small as e^-30 = 9e-14. The first output is x[0] itself, so its tangent is exactly t[0].
The double backward has the loss of the backward instead, which is exp(x - y) with a
rounded y: relative error 1e-12 at x = 10000. It is nan, too, in each element whose
cotangent is exactly zero: the backward takes log(dy), and its slope by dy is 0 times an
infinity there, though the gradient is linear in dy. gradcheck in forward mode
and gradgradcheck pass on OpInfo's samples, of which one has 10000: they compare with 1e-3.
"""

import sys

import numpy as np
import torch
import torch.autograd.forward_ad as forward_ad

# Entries of OpInfo whose second order this explains.
SECOND = ("logcumsumexp",)

wrong = False
for depth in (1.0, 30.0, 60.0):
    x = torch.tensor([-depth, 0.0], dtype=torch.float64)
    with forward_ad.dual_level():
        y = torch.logcumsumexp(forward_ad.make_dual(x, torch.ones(2).double()), 0)
        got = forward_ad.unpack_dual(y).tangent[0].item()
    print(f"torch {torch.__version__}: x = {x.tolist()}: got {got}, expected 1")
    wrong |= abs(got - 1) > 1e-14  # two roundings would be 2e-16
draw = np.random.default_rng(0)
x = torch.from_numpy(10_000 + draw.uniform(-1, 1, 50)).requires_grad_()
dy = torch.from_numpy(draw.standard_normal(50)).requires_grad_()
v = draw.standard_normal(50)
(dx,) = torch.autograd.grad(torch.logcumsumexp(x, 0), x, dy, create_graph=True)
(got,) = torch.autograd.grad(dx, dy, torch.from_numpy(v))  # J v: weighted means of v
e = np.exp(x.detach().numpy().astype(np.longdouble) - 10_000)
right, size = np.cumsum(e * v) / np.cumsum(e), np.cumsum(e * np.abs(v)) / np.cumsum(e)
error = float(np.max(np.abs(got.numpy() - right) / size))
print(f"torch {torch.__version__}: double backward at 10000: error {error:.2e}")
wrong |= error > 5e-14  # 50 terms: 50 roundings of 1.1e-16, and some of exp
dy = torch.tensor([0.0, 1.0], dtype=torch.float64, requires_grad=True)
x = torch.zeros_like(dy, requires_grad=True)
(dx,) = torch.autograd.grad(torch.logcumsumexp(x, 0), x, dy, create_graph=True)
(got,) = torch.autograd.grad(dx, dy, torch.tensor([3.0, 1.0]).double())
print(f"dy = {dy.tolist()}: got {got.tolist()}, expected [3, 2]")
sys.exit(wrong or not torch.allclose(got, torch.tensor([3.0, 2.0]).double()))
