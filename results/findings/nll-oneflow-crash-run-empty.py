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

x = oneflow.tensor(np.zeros((0, 0)), dtype=oneflow.float32, requires_grad=True)
target = oneflow.tensor(np.zeros((0,)), dtype=oneflow.int64)
weight = oneflow.tensor(np.zeros((0,)), dtype=oneflow.float32)
dloss = oneflow.tensor(0.0, dtype=oneflow.float32)
t1 = target != 0
t2 = oneflow.tensor(0, dtype=target.dtype, device=target.device)
t3 = oneflow.where(t1, target, t2)
t6 = oneflow.gather(x, 1, oneflow.as_tensor(oneflow.unsqueeze(t3, 1)))
t7 = weight[t3]
t9 = oneflow.where(t1, t7, oneflow.tensor(0.0, dtype=t7.dtype, device=t7.device))
t11 = t9 * oneflow.reshape(t6, (0,))
t12 = oneflow.tensor(0.0, dtype=t11.dtype, device=t11.device)
t16 = oneflow.sum(t9, dim=(0,), keepdim=False)
loss = -oneflow.sum(oneflow.where(t1, t11, t12), dim=(0,), keepdim=False) / t16
[dx] = oneflow.autograd.grad([loss], [x], [dloss])
print([t.detach().numpy() for t in (loss, dx)])
