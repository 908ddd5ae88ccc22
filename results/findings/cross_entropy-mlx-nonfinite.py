"""MLX 0.32.4: cross_entropy gives dx that is not finite.

dx[0, 0]: exact 0.0
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

wrong = False
for dtype, allowed in [(mx.float32, 0.0), (mx.float64, 0.0)]:
    x = mx.array([[0.0]], dtype)
    target = mx.array([0], mx.int64)
    dloss = mx.array(0.0, dtype)

    def call(x):
        t3 = x - mx.stop_gradient(mx.max(x, axis=1, keepdims=True))
        t7 = t3 - mx.log(mx.sum(mx.exp(t3), axis=1, keepdims=True))
        t9 = mx.expand_dims(target != 0, axis=1)
        t11 = mx.where(t9, mx.expand_dims(target, axis=1), 0)
        t15 = 0.0 * mx.mean(t7, axis=1, keepdims=True)
        t21 = -mx.sum(
            mx.where(t9, 1.0 * mx.take_along_axis(t7, t11, axis=1) + t15, 0.0)
        )
        return t21 / mx.sum(t9.astype(x.dtype))

    [loss], [dx] = mx.vjp(call, [x], [dloss])
    got, exact = np.array(dx), np.array([[0.0]])
    print(f"{dtype}: dx = {got}, exact {exact}")
    wrong |= not np.all((got == exact) | (abs(got - exact) <= allowed))
sys.exit(wrong)
