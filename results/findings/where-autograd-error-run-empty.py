"""HIPS/autograd 1.9.1: where raises on a legal input.

ValueError: non-broadcastable output operand with shape (0,) doesn't match the broadcast
shape (0,0)
error: autograd_formula
"""

import sys

import autograd.numpy as np
from autograd import make_vjp

a = np.array(np.zeros((0, 0)), "float32")
b = np.array(np.zeros((0,)), "float32")
mask = np.array(np.zeros((0, 1)), "bool")
dy = np.array(np.zeros((0, 0)), "float32")


def call(a, b):
    return np.where(mask, a, b)


pull, y = make_vjp(call, (0, 1))(a, b)
[da, db] = pull(dy)
print([t for t in (y, da, db)])
