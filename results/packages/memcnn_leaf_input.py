"""memcnn 1.5.2: the gradient by an input that is a leaf is counted twice.

`InvertibleCheckpointFunction.backward` sets `element.grad` of its inputs, and returns
the same gradient, which autograd adds to what it finds there. It is right where a layer
comes before. Without the first, it is right for both.
"""

import sys

import memcnn
import torch

torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4) for _ in range(2)]
block = memcnn.InvertibleModuleWrapper(memcnn.AdditiveCoupling(*layers))
x = torch.randn(3, 8)


def gradient(function):
    leaf = x.clone().requires_grad_()
    function(leaf).sum().backward()
    return leaf.grad


def plainly(x):
    a, b = x.chunk(2, 1)
    y = a + layers[0](b)
    return torch.cat([y, b + layers[1](y)], 1)


got, right = gradient(block), gradient(plainly)
print(f"got {got[0, 0]:.6g}, expected {right[0, 0]:.6g}")
sys.exit(not torch.allclose(got, right, atol=1e-5))
