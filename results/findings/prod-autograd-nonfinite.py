"""HIPS/autograd 1.9.1: prod gives dx that is not finite.

dx[0, 0]: exact 0.0
nan: autograd_formula
"""

import sys

import autograd.numpy as np
from autograd import make_vjp

wrong = False
for dtype, allowed in [("float32", 0.0), ("float64", 0.0)]:
    x = np.array([[0.0]], dtype)
    dy = np.array([0.0], dtype)

    def call(x):
        return np.prod(x, axis=0)

    pull, y = make_vjp(call, (0,))(x)
    [dx] = pull(dy)
    got, exact = dx, np.array([[0.0]])
    print(f"{dtype}: dx = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
