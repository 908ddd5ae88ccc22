"""OneFlow 0.9.0: instance_norm kills the process.

killed by SIGABRT in _numpy (tensor.py:450)
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
t2 = x - oneflow.mean(x, dim=(2,), keepdim=True)
t8 = oneflow.reshape(weight, (-1, 1))
t9 = t2 / oneflow.sqrt(oneflow.mean(t2 * t2, dim=(2,), keepdim=True) + 1e-05) * t8
y = t9 + oneflow.reshape(bias, (-1, 1))
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
print([t.detach().numpy() for t in (y, dx, dweight, dbias)])
