"""MLX 0.32.4: softplus gives wrong dx in float32.

dx[]: exact 0.5, 2.1e+06 rounding radii off (16.5 are allowed)
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array(0.0, mx.float32)
dy = mx.array(1.0, mx.float32)


def call(x):
    return mx.maximum(x, 0.0) + mx.log1p(mx.exp(-mx.abs(x)))


[y], [dx] = mx.vjp(call, [x], [dy])
got, exact, allowed = np.array(dx), np.array(0.5), 3.93e-06
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
