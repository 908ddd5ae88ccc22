"""TensorFlow 2.21.0: norm gives dx that is not finite, in float32.

dx[0, 0, 0]: exact -0.0
nan: tensorflow_autograd
-0.0: numpy_graph, torch_formula
"""

import sys

import numpy as np
import tensorflow as tf

x = tf.constant([[[-0.0]]], "float32")
dy = tf.constant([[-1.7555897]], "float32")
with tf.GradientTape() as tape:
    tape.watch([x])
    y = tf.norm(x, axis=1)
[dx] = tape.gradient([y], [x], output_gradients=[dy])
got, exact, allowed = np.array(dx), np.array([[[-0.0]]]), 0.0
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
