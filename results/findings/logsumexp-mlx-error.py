"""MLX 0.32.4: logsumexp raises on a legal input.

ValueError: [logsumexp] Received empty array.
error: mlx_formula
runs: numpy_graph, torch_formula
"""

import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

x = mx.array(np.zeros((0, 3, 4)), mx.float32)
dy = mx.array(np.zeros((0, 4)), mx.float32)


def call(x):
    return mx.logsumexp(x, axis=1)


[y], [dx] = mx.vjp(call, [x], [dy])
print([np.array(t) for t in (y, dx)])
