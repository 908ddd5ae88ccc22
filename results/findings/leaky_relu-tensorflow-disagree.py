"""TensorFlow 2.21.0: leaky_relu gives wrong y in float64.

y[]: exact -171.81897474852406, 2.01e+08 rounding radii off (16.5 are allowed)
-171.8189709080707: tensorflow_autograd
-171.81897474852406: numpy_graph, torch_formula
"""

import sys

import numpy as np
import tensorflow as tf

x = tf.constant(-17181.897474852405, "float64")
y = tf.nn.leaky_relu(x, 0.01)
got, exact, allowed = np.array(y), np.array(-171.81897474852406), 3.15e-13
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
