"""OneFlow 0.9.0: matmul kills the process.

killed by SIGABRT
runs: numpy_graph, numpy_manual, torch_autograd, torch_custom, torch_formula
crash: oneflow_autograd, oneflow_custom, oneflow_formula
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

a = oneflow.tensor(np.zeros((2, 1, 0, 2)), dtype=oneflow.float32, requires_grad=True)
b = oneflow.tensor(np.zeros((0, 2, 2)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((2, 0, 0, 2)), dtype=oneflow.float32)
y = oneflow.matmul(a, b)
[da, db] = oneflow.autograd.grad([y], [a, b], [dy])
print([t.detach().numpy() for t in (y, da, db)])
