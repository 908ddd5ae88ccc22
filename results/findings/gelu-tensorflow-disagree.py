"""TensorFlow 2.21.0: gelu gives wrong y in float64.

y[0, 1, 0]: exact -0.010045922531289019, 2.78e+06 rounding radii off (16.5 are allowed)
-0.010045922993614377: tensorflow_autograd
-0.010045922531289024: numpy_graph, torch_formula
"""

import sys

import numpy as np
import tensorflow as tf

x = tf.constant(
    [
        [[4.634305569209879], [-2.6553880724942984], [-3.270709840987197]],
        [[-0.4761304869460368], [5.9399999999999995], [5.2092075130410045]],
    ],
    "float64",
)
y = tf.nn.gelu(x, True)
got = np.array(y)
exact = np.array(
    [
        [[4.634303225418383], [-0.010045922531289019], [-0.001457054282892096]],
        [[-0.15094334306531662], [5.939999999854671], [5.209207459814698]],
    ]
)
allowed = np.array(
    [[[2.97e-14], [2.75e-15], [3.06e-15]], [[1.28e-15], [3.81e-14], [3.34e-14]]]
)
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
