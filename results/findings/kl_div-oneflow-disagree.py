"""OneFlow 0.9.0: kl_div gives wrong loss in float64.

loss[]: exact -1.3601215811474023, 3.36e+07 rounding radii off (17.3 are allowed)
-1.3601215811474026: numpy_graph, numpy_manual, oneflow_custom, oneflow_formula,
torch_custom, torch_formula
-1.3601216099279598: oneflow_autograd
-1.3601215811474023: torch_autograd
"""

import sys

import numpy as np
import oneflow

x = oneflow.tensor(
    [
        [
            -1.7660951162141296,
            -1.1395325335062252,
            2.345163833915776,
            -1.654201040233157,
            1.2759687392439896,
            0.3505844480770874,
            0.8724714875717617,
        ]
    ],
    dtype=oneflow.float64,
)
target = oneflow.tensor(
    [
        [
            0.0,
            0.0,
            0.09052978314962942,
            0.3213082767119201,
            0.0,
            0.19429081464513015,
            0.3938711254933203,
        ]
    ],
    dtype=oneflow.float64,
)
loss = oneflow.nn.functional.kl_div(x, target, reduction="batchmean")
got, exact, allowed = loss.detach().numpy(), np.array(-1.3601215811474023), 1.48e-14
print(f"loss = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
