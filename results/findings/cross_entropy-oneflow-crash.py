"""OneFlow 0.9.0: cross_entropy kills the process.

killed by SIGABRT
crash: oneflow_formula
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
dloss = oneflow.tensor(0.0, dtype=oneflow.float32)
t4 = x - oneflow.max(x, dim=1, keepdim=True)[0].detach()
t8 = t4 - oneflow.log(oneflow.sum(oneflow.exp(t4), dim=1, keepdim=True))
t10 = oneflow.unsqueeze(target != 0, 1)
t11 = oneflow.unsqueeze(target, 1)
t13 = oneflow.where(t10, t11, oneflow.tensor(0, dtype=t11.dtype, device=t11.device))
t18 = 0.0 * oneflow.mean(t8, dim=1, keepdim=True)
t19 = 1.0 * oneflow.gather(t8, 1, oneflow.as_tensor(t13)) + t18
t22 = oneflow.tensor(0.0, dtype=t19.dtype, device=t19.device)
t25 = -oneflow.sum(oneflow.where(t10, t19, t22), dim=(0, 1), keepdim=False)
loss = t25 / oneflow.sum(t10.to(x.dtype), dim=(0, 1), keepdim=False)
[dx] = oneflow.autograd.grad([loss], [x], [dloss])
print([t.detach().numpy() for t in (loss, dx)])
