"""OneFlow 0.9.0: prelu kills the process.

killed by SIGABRT in grad (autograd.py:59)
"""

import subprocess
import sys

import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor([0.0], dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor([0.0], dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor([0.0], dtype=oneflow.float32)
y = oneflow._C.prelu(x, weight)
[dx, dweight] = oneflow.autograd.grad([y], [x, weight], [dy])
print([t.detach().numpy() for t in (y, dx, dweight)])
