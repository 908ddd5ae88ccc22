"""embedding_bag: scale_grad_by_freq divides by how often another index occurs.

Seen: on a CPU, modes sum and mean, where indices occur differently often. The backward
counts at the place of a loop's number in place of the index; embedding divides by the
index's own count (https://github.com/pytorch/pytorch/issues/190063).
"""

import sys

import torch
from torch.nn.functional import embedding, embedding_bag

# Entries of OpInfo whose disagreements this explains.
ENTRIES = ()

indices = torch.tensor([1, 1, 3])
table = torch.ones(4, 1, dtype=torch.float64, requires_grad=True)
how = {"mode": "sum", "scale_grad_by_freq": True}
bag = embedding_bag(indices, table, torch.tensor([0]), **how)
rows = embedding(indices, table, scale_grad_by_freq=True)
got, expected = (torch.autograd.grad(y.sum(), table)[0] for y in (bag, rows))
told = f"got {got.ravel().tolist()}, expected {expected.ravel().tolist()}"
print(f"torch {torch.__version__}: {told}")
sys.exit(not torch.equal(got, expected))
