"""MLX 0.32.4: glu kills the process.

killed by SIGFPE in array (_mlx.py:19)
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

x = mx.array(np.zeros((0, 4, 5)), mx.float32)
dy = mx.array(np.zeros((0, 2, 5)), mx.float32)


def call(x):
    t5 = mx.sigmoid(mx.take(x, mx.arange(2, 4), axis=1))
    return mx.take(x, mx.arange(2), axis=1) * t5


[y], [dx] = mx.vjp(call, [x], [dy])
print([np.array(t) for t in (y, dx)])
