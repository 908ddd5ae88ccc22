"""MLX 0.32.4: sigmoid gives wrong y in float64.

y[0]: exact 0.4995000001666666, 2.36e+06 rounding radii off (16.5 are allowed)
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array([-0.002], mx.float64)
y = mx.sigmoid(x)
got, exact, allowed = np.array(y), np.array([0.4995000001666666]), 9.15e-16
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
