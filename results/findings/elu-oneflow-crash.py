"""OneFlow 0.9.0: elu kills the process.

A formula of elu, where(x > 0, 0.0, x), has a number in an empty where: SIGABRT.
runs: oneflow_autograd, oneflow_custom, numpy_graph, numpy_manual, torch_autograd,
torch_custom, torch_formula
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32, requires_grad=True)
zero = oneflow.tensor(0.0, dtype=oneflow.float32)
y = oneflow.where(x > 0.0, zero, x)
print(y.detach().numpy())
