"""MLX 0.32.4: softmax gives wrong y in float64.

y[1, 0]: exact 0.2689414213699951, 3.61e+07 rounding radii off (16.7 are allowed)
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array([[0.0, 0.5], [-0.5, 0.5]], mx.float64)
t4 = mx.exp(x - mx.stop_gradient(mx.max(x, axis=-1, keepdims=True)))
y = t4 / mx.sum(t4, axis=-1, keepdims=True)
got = np.array(y)
exact = np.array(
    [
        [0.37754066879814546, 0.6224593312018546],
        [0.2689414213699951, 0.7310585786300049],
    ]
)
allowed = np.array([[2.85e-15, 2.96e-15], [2.26e-15, 3.44e-15]])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
