"""OneFlow 0.9.0: rotary kills the process.

killed by SIGFPE in grad (autograd.py:59)
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
t1 = oneflow.reshape(x, (0, 2, 0))
t2 = t1[..., 0, :]
t3 = t1[..., 1, :]
t10 = oneflow.cat((t2 * cos - t3 * sin, t3 * cos + t2 * sin), dim=-1)
y = oneflow.reshape(t10, (0, 0))
[dx] = oneflow.autograd.grad([y], [x], [dy])
print([t.detach().numpy() for t in (y, dx)])
