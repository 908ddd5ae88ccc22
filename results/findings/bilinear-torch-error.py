"""PyTorch 2.13.0: bilinear raises on a legal input.

RuntimeError: cannot reshape tensor of 0 elements into shape [-1, 0] because the
unspecified dimension size -1 can be any value and is ambiguous
"""

import sys

import numpy as np
import torch

a = torch.tensor(np.zeros((0, 0)), dtype=torch.float32, requires_grad=True)
b = torch.tensor(np.zeros((0, 0)), dtype=torch.float32, requires_grad=True)
weight = torch.tensor(np.zeros((0, 0, 0)), dtype=torch.float32, requires_grad=True)
bias = torch.tensor(np.zeros((0,)), dtype=torch.float32, requires_grad=True)
dy = torch.tensor(np.zeros((0, 0)), dtype=torch.float32)
y = torch.nn.functional.bilinear(a, b, weight, bias)
[da, db, dweight, dbias] = torch.autograd.grad([y], [a, b, weight, bias], [dy])
print([t.detach().numpy() for t in (y, da, db, dweight, dbias)])
