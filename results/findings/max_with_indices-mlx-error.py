"""MLX 0.32.4: max_with_indices raises on a legal input.

ValueError: [argmax] Cannot argmax reduce zero size array.
error: mlx_formula
runs: numpy_graph, torch_formula
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array(np.zeros((0, 3, 4)), mx.float32)
dvalues = mx.array(np.zeros((0, 3)), mx.float32)


def call(x):
    values = mx.max(x, axis=-1)
    indices = mx.argmax(x, axis=-1)
    return values


[values], [dx] = mx.vjp(call, [x], [dvalues])
print([np.array(t) for t in (values, indices, dx)])
