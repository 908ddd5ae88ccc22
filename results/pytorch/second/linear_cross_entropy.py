"""linear_cross_entropy in chunks: the backward is silently a constant.

Seen: with options that choose chunks and keep the graph. The forward computes the
gradients already and keeps them detached, so that to autograd they do not depend on the
inputs: no double backward is refused, and every Hessian is 0 (None). Without chunks the
Hessian is there. A comment in PyTorch says that double backward is unsupported; nothing
says so to the caller. gradgradcheck fails.
"""

import sys

import torch
from torch.nn.functional import linear_cross_entropy

# Entries of OpInfo whose second order this explains.
SECOND = ("nn_functional_linear_cross_entropy_chunked",)

draw = torch.Generator().manual_seed(0)
x = torch.randn(8, 3, generator=draw, dtype=torch.float64, requires_grad=True)
weight = torch.randn(4, 3, generator=draw, dtype=torch.float64)
target = torch.arange(8) % 4
options = torch.nn.LinearCrossEntropyOptions(
    allow_retain_graph=True, batch_chunk_size=2
)
sizes = []
for chosen in (None, options):
    loss = linear_cross_entropy(x, weight, target, options=chosen)
    (dx,) = torch.autograd.grad(
        loss, x, torch.ones_like(loss).requires_grad_(), create_graph=True
    )
    (second,) = torch.autograd.grad(dx.sum(dim=1)[0], x, allow_unused=True)
    sizes.append(0.0 if second is None else second.abs().max().item())
print(
    f"torch {torch.__version__}: second derivatives up to {sizes[0]}, in chunks {sizes[1]}"
)
sys.exit(sizes[0] > 0 and sizes[1] == 0)
