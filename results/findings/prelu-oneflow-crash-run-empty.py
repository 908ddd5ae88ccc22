"""OneFlow 0.9.0: prelu kills the process.

killed by SIGFPE in autograd_oneflow (prelu.py:63)
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float64, requires_grad=True)
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float64)
y = oneflow._C.prelu(x, weight)
[dx, dweight] = oneflow.autograd.grad([y], [x, weight], [dy])
print([t.detach().numpy() for t in (y, dx, dweight)])
