"""OneFlow 0.9.0: softmax kills the process.

killed by SIGFPE
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
dy = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32)
y = oneflow.nn.functional.softmax(x, dim=0)
[dx] = oneflow.autograd.grad([y], [x], [dy])
print([t.detach().numpy() for t in (y, dx)])
