"""HIPS/autograd 1.9.1: softplus gives wrong dx in float64.

dx[2]: exact 0.5, 18.7 rounding radii off (16.5 are allowed)
0.4999999999999901: autograd_formula
"""

import sys

import autograd.numpy as np
from autograd import make_vjp

x = np.array(
    [1.17109075613781e-309, -6.8547254963089e-309, 2.50085670866366e-310], "float64"
)
dy = np.array([0.0, 0.0, 1.0], "float64")


def call(x):
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


pull, y = make_vjp(call, (0,))(x)
[dx] = pull(dy)
got, exact, allowed = dx, np.array([0.0, 0.0, 0.5]), np.array([0.0, 0.0, 8.71e-15])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
