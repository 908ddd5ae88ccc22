"""Paddle 3.3.1: matmul raises on a legal input.

ValueError: (InvalidArgument) Input dimension size should be equal to 2, but received
dimension size is 3.
error: paddle_autograd
runs: numpy_graph, torch_formula
"""

import sys

import paddle

a = paddle.to_tensor([[[[1.0]]], [[[1.0]]]], "float32", stop_gradient=False)
b = paddle.to_tensor([[[1.0, 1.0]]], "float32", stop_gradient=False)
dy = paddle.to_tensor(
    [[[[-0.13996693, -1.3933651]]], [[[-0.14880075, 0.22634175]]]], "float32"
)
y = paddle.matmul(a, b)
[da, db] = paddle.grad([y], [a, b], [dy], allow_unused=True)
print([t.numpy() for t in (y, da, db)])
