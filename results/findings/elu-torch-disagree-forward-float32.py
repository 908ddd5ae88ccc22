"""PyTorch 2.13.0: elu gives wrong y in float32.

y[0]: exact -0.0002443491854529142, 1.02e+03 rounding radii off (16.5 are allowed)
-0.00024431943893432617: torch_compile
-0.00024434918304905295: numpy_graph, numpy_manual, torch_autograd
"""

import sys

import numpy as np
import torch

x = torch.tensor([-0.00024437904, -0.00024437904], dtype=torch.float32)


@torch.compile(fullgraph=True, dynamic=False)
def call(x):
    return torch.nn.functional.elu(x, 1.0)


y = call(x)
got = y.detach().numpy()
exact = np.array([-0.0002443491854529142, -0.0002443491854529142])
allowed = 4.81e-10
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
