"""TensorFlow 2.21.0: max_with_indices gives wrong indices.

indices[0, 1]: exact 1.0
0: tensorflow_formula
1: numpy_graph, torch_formula
"""

import sys

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

tnp.experimental_enable_numpy_behavior(dtype_conversion_mode="all")

x = tf.constant([[[np.inf, 0.08898993], [-0.35656512, np.nan]]], "float32")
values = tf.reduce_max(x, axis=1)
indices = tnp.argmax(x, axis=1)
got, exact, allowed = np.array(indices), np.array([[0, 1]]), 0.0
print(f"indices = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
