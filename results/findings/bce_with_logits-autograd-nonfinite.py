"""HIPS/autograd 1.9.1: bce_with_logits gives dx that is not finite.

dx[0]: exact 0.0
nan: autograd_formula
"""

import sys

import autograd.numpy as np
from autograd import make_vjp

wrong = False
for dtype, allowed in [("float32", 0.0), ("float64", 0.0)]:
    x = np.array([np.inf], dtype)
    target = np.array([0.7739234], dtype)
    dloss = np.array(0.0, dtype)

    def call(x):
        return np.mean(np.maximum(x, 0.0) - x * target + np.log1p(np.exp(-np.abs(x))))

    pull, loss = make_vjp(call, (0,))(x)
    [dx] = pull(dloss)
    got, exact = dx, np.array([0.0])
    print(f"{dtype}: dx = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
