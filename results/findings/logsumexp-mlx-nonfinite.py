"""MLX 0.32.4: logsumexp gives dx that is not finite, in float64.

dx[2]: exact -0.0
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array([np.inf, np.inf, 96.0], mx.float64)
dy = mx.array(-2.0, mx.float64)


def call(x):
    return mx.logsumexp(x, axis=-1)


[y], [dx] = mx.vjp(call, [x], [dy])
got = np.array(dx)
exact = np.array([0.0, 0.0, -0.0])
allowed = np.array([np.inf, np.inf, 3.7e-265])
print(f"dx = {got}, exact {exact}")
right = (got == exact) | (abs(got - exact) <= allowed) | (allowed == np.inf)
sys.exit(not np.all(right))
