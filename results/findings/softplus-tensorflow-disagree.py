"""TensorFlow 2.21.0: softplus gives wrong dx in float32.

dx[]: exact 0.022240502759814262, 1.77e+06 rounding radii off (16.5 are allowed)
0.0: tensorflow_formula
0.022240502759814262: numpy_graph, torch_formula
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

tnp.experimental_enable_numpy_behavior(dtype_conversion_mode="all")

x = tf.constant(1.343964e-39, "float32")
dy = tf.constant(0.044481006, "float32")
with tf.GradientTape() as tape:
    tape.watch([x])
    y = tnp.maximum(x, 0.0) + tnp.log1p(tnp.exp(-tnp.abs(x)))
[dx] = tape.gradient([y], [x], output_gradients=[dy])
got, exact, allowed = np.array(dx), np.array(0.022240502759814262), 2.08e-07
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
