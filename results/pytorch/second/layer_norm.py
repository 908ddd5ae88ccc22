"""layer_norm with a bias and no weight: what the bias's gradient depends on is lost.

dbias is the sum of dy over the rows, so its derivative along a tangent v is v by each
row of dy. PyTorch gives none: autograd.grad returns None, and where the gradient of x
has a tangent, too, it raises "Expected a proper Tensor but got None". With a weight,
or without a bias, all is right. native_layer_norm is the same function.
"""

import sys

import torch

# Entries of OpInfo whose second order this explains.
SECOND = ("native_layer_norm",)

x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
bias = torch.zeros(3, dtype=torch.float64, requires_grad=True)
v = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)


def second(weight, *wanted):
    """The derivatives of gradients along ones, and of dbias along v, by dy."""
    y = torch.nn.functional.layer_norm(x, (3,), weight, bias)
    dy = torch.ones_like(y).requires_grad_()
    gradients = torch.autograd.grad(y, wanted, dy, create_graph=True)
    along = [v if of is bias else torch.ones_like(of) for of in wanted]
    return torch.autograd.grad(gradients, dy, along, allow_unused=True)[0]


right = second(torch.ones(3, dtype=torch.float64), bias)
got = second(None, bias)
try:
    raised = ""
    second(None, x, bias)
except RuntimeError as error:
    raised = str(error)
print(f"torch {torch.__version__}: with a weight {right.tolist()}, without {got}")
print(f"together with dx: {raised or 'does not raise'}")
sys.exit(got is None or bool(raised))
