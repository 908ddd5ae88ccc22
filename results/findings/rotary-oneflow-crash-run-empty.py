"""OneFlow 0.9.0: rotary kills the process.

killed by SIGFPE in _numpy (tensor.py:450)
crash: oneflow_autograd, oneflow_formula
runs: oneflow_custom
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
cos = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32)
sin = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32)
dy = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32)
t7 = oneflow.cat((sin, sin), dim=-1)
t8 = oneflow.cat((-x[..., 0:], x[..., :0]), dim=-1) * t7
y = x * oneflow.cat((cos, cos), dim=-1) + t8
[dx] = oneflow.autograd.grad([y], [x], [dy])
print([t.detach().numpy() for t in (y, dx)])
