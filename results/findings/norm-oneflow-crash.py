"""OneFlow 0.9.0: norm kills the process.

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

x = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32)
t2 = oneflow.sum(x * x, dim=0, keepdim=False)
t4 = oneflow.tensor(1.0, dtype=t2.dtype, device=t2.device)
t7 = oneflow.sqrt(oneflow.where(t2 == 0.0, t4, t2))
t8 = oneflow.tensor(0.0, dtype=t7.dtype, device=t7.device)
y = oneflow.where(t2 == 0.0, t8, t7)
[dx] = oneflow.autograd.grad([y], [x], [dy])
print([t.detach().numpy() for t in (y, dx)])
