"""OneFlow 0.9.0: group_norm kills the process.

killed by SIGABRT
runs: numpy_graph, numpy_manual, oneflow_custom, torch_autograd, torch_custom,
torch_formula
crash: oneflow_autograd, oneflow_formula
"""

import subprocess
import sys

import numpy as np
import oneflow

if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)

x = oneflow.tensor(np.zeros((0, 4, 2, 5)), dtype=oneflow.float32, requires_grad=True)
weight = oneflow.tensor(
    [-2.350759, 0.035711158, 0.017924396, -0.73105806],
    dtype=oneflow.float32,
    requires_grad=True,
)
bias = oneflow.tensor(
    [-0.22684698, 1.176623, 0.28969297, 0.74029386],
    dtype=oneflow.float32,
    requires_grad=True,
)
dy = oneflow.tensor(np.zeros((0, 4, 2, 5)), dtype=oneflow.float32)
t1 = oneflow.reshape(x, (0, 1, 40))
t3 = t1 - oneflow.mean(t1, dim=-1, keepdim=True)
t8 = t3 / oneflow.sqrt(oneflow.mean(t3 * t3, dim=-1, keepdim=True) + 1e-05)
t12 = oneflow.reshape(bias, (-1, 1, 1))
y = oneflow.reshape(t8, (0, 4, 2, 5)) * oneflow.reshape(weight, (-1, 1, 1)) + t12
[dx, dweight, dbias] = oneflow.autograd.grad([y], [x, weight, bias], [dy])
print([t.detach().numpy() for t in (y, dx, dweight, dbias)])
