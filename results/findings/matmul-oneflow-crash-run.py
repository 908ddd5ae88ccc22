"""OneFlow 0.9.0: matmul kills the process.

killed by SIGABRT in autograd (matmul.py:57)
"""

import subprocess
import sys

import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

a = oneflow.tensor([0.0], dtype=oneflow.float32, requires_grad=True)
b = oneflow.tensor([[[0.0]]], dtype=oneflow.float32, requires_grad=True)
dy = oneflow.tensor([[0.0]], dtype=oneflow.float32)
y = oneflow.matmul(a, b)
[da, db] = oneflow.autograd.grad([y], [a, b], [dy])
print([t.detach().numpy() for t in (y, da, db)])
