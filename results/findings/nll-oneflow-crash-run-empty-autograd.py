"""OneFlow 0.9.0: nll kills the process.

killed by SIGFPE in forward (loss.py:424)
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

x = oneflow.tensor(np.zeros((4, 0, 2)), dtype=oneflow.float32, requires_grad=True)
target = oneflow.tensor([[0, 0], [-100, 0], [0, -100], [0, 0]], dtype=oneflow.int64)
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32)
dloss = oneflow.tensor(np.zeros((4, 0, 2)), dtype=oneflow.float32)
loss = oneflow.nn.NLLLoss(weight, 0, "mean")(x, target)
[dx] = oneflow.autograd.grad([loss], [x], [dloss])
print([t.detach().numpy() for t in (loss, dx)])
