"""OneFlow 0.9.0: sigmoid_ratio kills the process.

killed by SIGABRT
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64, requires_grad=True)
y = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64, requires_grad=True)
df = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64)
f = (x + oneflow.sigmoid(y)) / (oneflow.sigmoid(x) + (x + y) ** 2)
[dx, dy] = oneflow.autograd.grad([f], [x, y], [df])
print([t.detach().numpy() for t in (f, dx, dy)])
