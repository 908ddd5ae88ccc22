"""TensorFlow 2.21.0: gelu gives wrong dx in float64.

dx[]: exact 4.649371581598525e-09, 530 rounding radii off (16.5 are allowed)
4.649374305162311e-09: tensorflow_autograd
4.64937158350095e-09: numpy_graph
4.649371583500951e-09: torch_formula
"""

import sys

import numpy as np
import tensorflow as tf

x = tf.constant(-5.9399999999999995, "float64")
dy = tf.constant(-0.09259522666870022, "float64")
with tf.GradientTape() as tape:
    tape.watch([x])
    y = tf.nn.gelu(x, False)
[dx] = tape.gradient([y], [x], output_gradients=[dy])
got, exact, allowed = np.array(dx), np.array(4.649371581598525e-09), 8.49e-17
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
