"""triangular_solve: forward mode also moves the triangle that is never read.

Seen: a tangent of -50 in place of 1.0. X = A^-1 B reads the upper triangle of A alone, so
its tangent is A^-1 (dB - triu(dA) X). triangular_solve_jvp multiplies the whole dA by X.
Backward, and linalg.solve_triangular in forward mode, take the triangle. gradcheck in
forward mode passes on triangular matrices with triangular tangents, and fails on others.
"""

import sys
import warnings

import torch
import torch.autograd.forward_ad as forward_ad

# Entries of OpInfo whose second order this explains.
SECOND = ("triangular_solve",)

warnings.simplefilter("ignore")  # it is deprecated
a = torch.tensor([[2.0, 1.0], [0.0, 4.0]], dtype=torch.float64)
below = torch.tensor([[0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
b = torch.ones(2, 1, dtype=torch.float64)
with forward_ad.dual_level():
    x, _ = torch.triangular_solve(b, forward_ad.make_dual(a, below), upper=True)
    got = forward_ad.unpack_dual(x).tangent
moved = torch.triangular_solve(b, a + below, upper=True)[0]
moves = (moved - torch.triangular_solve(b, a, upper=True)[0]).abs().max().item()
print(f"torch {torch.__version__}: tangent {got.tolist()}, the solution moves {moves}")
sys.exit(moves == 0 and bool(got.abs().max() > 0))
