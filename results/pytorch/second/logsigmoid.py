"""logsigmoid: the second derivative loses all digits for positive x.

Seen: 93 % off at x = 36.7 and exactly 0 at x = 40, where -s (1 - s) = -4.2e-18, in
float64. log_sigmoid_double_backward computes z = sigmoid(x) and (z - 1) z: where z rounds
to 1, nothing is left of 1 - z. For negative x all is well, and sigmoid(-x) sigmoid(x)
costs no more. multilabel_soft_margin_loss is made of it. gradgradcheck passes: its
absolute tolerance is 1e-5.
"""

import sys

import numpy as np
import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("nn_functional_logsigmoid", "nn_functional_multilabel_soft_margin_loss")

x = torch.tensor([5.0, 20.0, 36.7, 40.0], dtype=torch.float64, requires_grad=True)
y = torch.nn.functional.logsigmoid(x)
(dx,) = torch.autograd.grad(y.sum(), x, create_graph=True)
(got,) = torch.autograd.grad(dx.sum(), x)
e = np.exp(-x.detach().numpy())
right = -e / (1 + e) ** 2
error = np.abs(got.numpy() / right - 1)
print(f"torch {torch.__version__}: relative error {error} at x = {x.tolist()}")
sys.exit(bool(error.max() > 1e-14))  # a few roundings of 1.1e-16
