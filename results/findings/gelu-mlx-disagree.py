"""MLX 0.32.4: gelu gives wrong y in float64.

y[]: exact -0.15865525393145705, 2.71e+08 rounding radii off (16.5 are allowed)
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array(-1.0, mx.float64)
y = 0.5 * x * (1.0 + mx.erf(x * 0.7071067811865476))
got, exact, allowed = np.array(y), np.array(-0.15865525393145705), 1.94e-15
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
