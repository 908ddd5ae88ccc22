"""instance_norm: the gradient is wrong if the cotangent lies in channels-last order.

Seen: an error as large as the gradient, in float64, float32 and bfloat16, for one image
or one channel of four axes. The op is batch_norm of one image with B * C channels. If
their cotangent, reshaped likewise, lies in channels-last order, as behind a convolution
in that format, the backward reads it as if it lay in the order of x. gradcheck of
instance_norm alone passes: its cotangents are contiguous. In front of a convolution in
channels-last format, gradcheck fails.
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains: its cotangents are contiguous.
ENTRIES = ()


def gradient(shape, order):
    """How far the gradient is off if the axes of the cotangent lie in that order."""
    torch.manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(shape, dtype=torch.float64)
    back = [order.index(axis) for axis in range(4)]
    moved = dy.permute(order).contiguous().permute(back)
    y = torch.nn.functional.instance_norm(x)
    (right,) = torch.autograd.grad(y, x, dy, retain_graph=True)
    (got,) = torch.autograd.grad(y, x, moved)
    return ((got - right).abs().max() / right.abs().max()).item()


errors = {
    "one image, channels last": gradient((1, 3, 4, 5), [0, 2, 3, 1]),
    "one channel, images last": gradient((5, 1, 4, 1), [3, 2, 1, 0]),
}
print(f"torch {torch.__version__}: relative errors {errors}")
sys.exit(max(errors.values()) > 1e-12)  # the same numbers: a sum in another order
