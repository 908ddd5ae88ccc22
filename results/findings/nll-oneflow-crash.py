"""OneFlow 0.9.0: nll kills the process.

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

x = oneflow.tensor(np.zeros((1, 0)), dtype=oneflow.float64, requires_grad=True)
target = oneflow.tensor([0], dtype=oneflow.int64)
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float64)
dloss = oneflow.tensor(np.zeros((1, 0)), dtype=oneflow.float64)
t2 = (target == 0).unsqueeze(1)
t6 = x.new_zeros((1, 0)).scatter_(1, target.unsqueeze(1).masked_fill(t2, 0), 1)
t9 = t6.masked_fill(t2, 0) * weight.reshape(-1)
loss = -(t9 * x).masked_fill(t9 == 0, 0).sum() / t9.sum()
dx = -(t9 * (dloss / t9.sum())).masked_fill(t9 == 0, 0)
print([t.detach().numpy() for t in (loss, dx)])
