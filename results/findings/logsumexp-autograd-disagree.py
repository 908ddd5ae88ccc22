"""HIPS/autograd 1.9.1: logsumexp gives wrong dx.

dx[0, 0]: exact 0.5, 890 rounding radii off (16.7 are allowed)
0.4998939037322998: autograd_formula
"""

import sys

from autograd.scipy import special
import autograd.numpy as np
from autograd import make_vjp

wrong = False
for dtype, allowed in [("float32", 1.99e-06), ("float64", 3.71e-15)]:
    x = np.array([[10000.0], [10000.0]], dtype)
    dy = np.array([1.0], dtype)

    def call(x):
        return special.logsumexp(x, axis=0)

    pull, y = make_vjp(call, (0,))(x)
    [dx] = pull(dy)
    got, exact = dx, np.array([[0.5], [0.5]])
    print(f"{dtype}: dx = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
