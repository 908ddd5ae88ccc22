"""OneFlow 0.9.0: masked_attention kills the process.

killed by SIGABRT
crash: oneflow_custom, oneflow_formula
"""

import subprocess
import sys

from math import inf
import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

q = oneflow.tensor(np.zeros((0, 0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
k = oneflow.tensor(np.zeros((0, 0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
v = oneflow.tensor(np.zeros((0, 0, 0, 0)), dtype=oneflow.float32, requires_grad=True)
mask = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.bool)
dy = oneflow.tensor(np.zeros((0, 0, 0, 0)), dtype=oneflow.float32)
t3 = oneflow.matmul(q, oneflow.transpose(k, -2, -1)) / 0.0
t5 = oneflow.where(mask, t3, oneflow.tensor(-inf, dtype=t3.dtype, device=t3.device))
t10 = oneflow.exp(t5 - oneflow.max(t5, dim=-1, keepdim=True)[0].detach())
y = oneflow.matmul(t10 / oneflow.sum(t10, dim=-1, keepdim=True), v)
[dq, dk, dv] = oneflow.autograd.grad([y], [q, k, v], [dy])
print([t.detach().numpy() for t in (y, dq, dk, dv)])
