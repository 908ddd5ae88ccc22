"""OneFlow 0.9.0: bce_with_logits gives wrong dx in float64.

dx[0, 1, 0]: exact -6.644903500660952e-13, 1.32e+10 rounding radii off (17 are allowed)
-6.644903500660952e-13: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_autograd, torch_custom, torch_formula
-6.64482554633387e-13: oneflow_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(
    [
        [[-737.3384945700327], [-26.779760518695714]],
        [[-230.44380144582755], [-827.7597961551648]],
    ],
    dtype=oneflow.float64,
    requires_grad=True,
)
target = oneflow.tensor(
    [[[0.0], [0.0]], [[0.9496196655473372], [1.0]]], dtype=oneflow.float64
)
dloss = oneflow.tensor(-1.1346211887928406, dtype=oneflow.float64)
loss = oneflow.nn.functional.binary_cross_entropy_with_logits(x, target)
[dx] = oneflow.autograd.grad([loss], [x], [dloss])
got = dx.detach().numpy()
exact = np.array(
    [
        [[-1.7e-321], [-6.644903500660952e-13]],
        [[0.26936464845609487], [0.28365529719821014]],
    ]
)
allowed = np.array([[[8.64e-307], [1e-26]], [[2.03e-15], [2.14e-15]]])
print(f"dx = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
