"""MLX 0.32.4: conv1d kills the process.

killed by SIGFPE in array (_mlx.py:22)
crash: mlx_formula
runs: numpy_graph, torch_formula
"""

import subprocess
import sys

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = mx.array(np.zeros((0, 1, 9)), mx.float32)
weight = mx.array([[[1.0, 1.0, 1.0]]], mx.float32)
bias = mx.array([1.0], mx.float32)
dy = mx.array(np.zeros((0, 1, 7)), mx.float32)


def call(x, weight, bias):
    t1 = mx.take(
        x,
        mx.array(
            [
                [0, 1, 2],
                [1, 2, 3],
                [2, 3, 4],
                [3, 4, 5],
                [4, 5, 6],
                [5, 6, 7],
                [6, 7, 8],
            ]
        ),
        axis=2,
    )
    t4 = mx.reshape(bias, (-1, 1))
    return mx.einsum("bcli,oci->bol", mx.transpose(t1, (0, 1, 2, 3)), weight) + t4


[y], [dx, dweight, dbias] = mx.vjp(call, [x, weight, bias], [dy])
print([np.array(t) for t in (y, dx, dweight, dbias)])
