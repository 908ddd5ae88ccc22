"""OneFlow 0.9.0: rms_norm kills the process.

killed by SIGABRT
runs: oneflow_custom
crash: oneflow_formula
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
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32)
y = x / oneflow.sqrt(oneflow.mean(x * x, dim=(-1,), keepdim=True) + 1e-06) * weight
[dx, dweight] = oneflow.autograd.grad([y], [x, weight], [dy])
print([t.detach().numpy() for t in (y, dx, dweight)])
