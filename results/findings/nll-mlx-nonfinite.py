"""MLX 0.32.4: nll gives dx that is not finite, in float32.

dx[0, 0]: exact 0.0
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array([[0.0]], mx.float32)
target = mx.array([0], mx.int64)
weight = mx.array([1.625], mx.float32)
dloss = mx.array(0.0, mx.float32)


def call(x):
    t1 = target != 0
    t2 = mx.where(t1, target, 0)
    t6 = mx.where(t1, mx.take(weight, t2, axis=0), 0.0)
    t7 = mx.reshape(mx.take_along_axis(x, mx.expand_dims(t2, axis=1), axis=1), (1,))
    return -mx.sum(mx.where(t1, t6 * t7, 0.0)) / mx.sum(t6)


[loss], [dx] = mx.vjp(call, [x], [dloss])
got, exact, allowed = np.array(dx), np.array([[0.0]]), 0.0
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
