"""HIPS/autograd 1.9.1: elu gives wrong dx in float64.

dx[1]: exact -1.7198688548667608e-222, 1.8e+15 rounding radii off (16.5 are allowed)
"""

import sys

import autograd.numpy as np
from autograd import make_vjp

x = np.array(
    [567.1648592761779, -510.63164260393023, -1535.3630428126855, -1574.3801596566739],
    "float64",
)
dy = np.array([-1.0, -1.0, -1.0, -1.0], "float64")


def call(x):
    return np.where(x > 0.0, x, 1.0 * np.expm1(np.where(x > 0.0, -x, x)))


pull, y = make_vjp(call, (0,))(x)
[dx] = pull(dy)
got = dx
exact = np.array([-1.0, -1.7198688548667608e-222, -0.0, -0.0])
allowed = np.array([3.67e-15, 1.58e-236, 8.9e-308, 8.9e-308])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
