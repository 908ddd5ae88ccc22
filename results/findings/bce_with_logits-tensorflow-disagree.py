"""TensorFlow 2.21.0: bce_with_logits gives wrong dx in float32.

dx[]: exact 0.05466124481592782, 1.86e+06 rounding radii off (16.5 are allowed)
-0.018361099064350128: tensorflow_formula
0.05466124415397644: numpy_graph, torch_formula
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

tnp.experimental_enable_numpy_behavior(dtype_conversion_mode="all")

x = tf.constant(-1.84093e-40, "float32")
target = tf.constant(0.12572247, "float32")
dloss = tf.constant(0.14604469, "float32")
with tf.GradientTape() as tape:
    tape.watch([x])
    t8 = tnp.maximum(x, 0.0) - x * target + tnp.log1p(tnp.exp(-tnp.abs(x)))
    loss = tf.reduce_mean(t8)
[dx] = tape.gradient([loss], [x], output_gradients=[dloss])
got, exact, allowed = np.array(dx), np.array(0.05466124481592782), 6.47e-07
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
