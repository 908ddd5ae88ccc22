"""OneFlow 0.9.0: instance_norm kills the process.

killed by SIGFPE in reshape_op (reshape.py:58)
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor(np.zeros((0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
bias = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 0, 0)), dtype=oneflow.float32)
t4 = oneflow.nn.InstanceNorm1d(0, 1e-05, affine=False)(x) * weight.reshape((-1, 1))
y = t4 + bias.reshape((-1, 1))
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
print([t.detach().numpy() for t in (y, dx, dweight, dbias)])
