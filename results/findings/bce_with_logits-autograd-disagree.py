"""HIPS/autograd 1.9.1: bce_with_logits gives wrong dx in float64.

dx[3]: exact 0.25, 17.2 rounding radii off (17 are allowed)
"""

import sys

import autograd.numpy as np
from autograd import make_vjp

x = np.array([2.25e-310, 4.46e-309, 3.52e-309, -6.06e-310], "float64")
target = np.array([0.0, 0.0, 0.7348721146574306, 0.0], "float64")
dloss = np.array(2.0, "float64")


def call(x):
    return np.mean(np.maximum(x, 0.0) - x * target + np.log1p(np.exp(-np.abs(x))))


pull, loss = make_vjp(call, (0,))(x)
[dx] = pull(dloss)
got = dx
exact = np.array([0.25, 0.25, -0.11743605732871532, 0.25])
allowed = np.array([6.85e-15, 6.85e-15, 7.29e-15, 4.01e-15])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
