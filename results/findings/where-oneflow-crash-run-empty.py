"""OneFlow 0.9.0: where kills the process.

killed by SIGABRT
runs: numpy_graph, numpy_manual, oneflow_custom, torch_autograd, torch_custom,
torch_formula
crash: oneflow_autograd, oneflow_formula
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

a = oneflow.tensor(np.zeros((0, 4)), dtype=oneflow.float32, requires_grad=True)
b = oneflow.tensor(
    [-0.091552444, -0.053858884, 1.1256386, -0.019501846],
    dtype=oneflow.float32,
    requires_grad=True,
)
mask = oneflow.tensor(np.zeros((0, 1)), dtype=oneflow.bool)
dy = oneflow.tensor(np.zeros((0, 4)), dtype=oneflow.float32)
y = oneflow.where(mask, a, b)
[da, db] = oneflow.autograd.grad([y], [a, b], [dy])
print([t.detach().numpy() for t in (y, da, db)])
