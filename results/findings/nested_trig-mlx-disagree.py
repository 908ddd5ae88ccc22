"""MLX 0.32.4: nested_trig gives wrong loss in float64.

loss[]: exact 1.6272041385463958, 8.98e+07 rounding radii off (16.5 are allowed)
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array(2.9699999999999993, mx.float64)
y = mx.array(2.9699999999999998, mx.float64)
b0 = mx.array(2.9699999999999998, mx.float64)
b1 = mx.array(2.9699999999999998, mx.float64)
b2 = mx.array(2.9699999999999998, mx.float64)
b3 = mx.array(2.9699999999999998, mx.float64)
w0 = mx.array(2.9699999999999993, mx.float64)
w1 = mx.array(2.9699999999999998, mx.float64)
w2 = mx.array(-2.9699999999999998, mx.float64)
w3 = mx.array(2.9699999999999993, mx.float64)
t12 = b3 + w3 * mx.cos(b2 + w2 * mx.exp(b1 + w1 * mx.sin(b0 + w0 * x))) - y
loss = mx.square(t12)
got, exact, allowed = np.array(loss), np.array(1.6272041385463958), 4.69e-12
print(f"loss = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
