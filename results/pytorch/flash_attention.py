"""Attention on a CPU: gradients of a row that finfo.min masks wholly are n times it.

A mask of finfo.min, as many models have it, leaves a row of equal scores where it hides
all n keys: the softmax is 1/n. So is the forward's. The backward computes it again from
the saved logsumexp, finfo.min + log(n), where log(n) is lost: exp(0) = 1 for 1/n.
Seen in float32 and float64. A mask of -inf, and the math kernel, are right.
"""

import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

# Entries of OpInfo whose disagreements this explains: its masks hide no whole row.
ENTRIES = ()

n = 8
torch.manual_seed(0)
wrong = False
for dtype in (torch.float32, torch.float64):
    q, k, v, dy = torch.randn(4, 1, 1, n, 4, dtype=dtype)
    mask = torch.zeros(n, n, dtype=dtype)
    mask[0] = torch.finfo(dtype).min
    dy[..., 1:, :] = 0  # of the masked row alone

    def gradients(kernel, q=q, k=k, v=v, dy=dy, mask=mask):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        with sdpa_kernel(kernel):
            attention = torch.nn.functional.scaled_dot_product_attention
            y = attention(*leaves, attn_mask=mask)
        return torch.autograd.grad(y, leaves, dy)

    right = gradients(SDPBackend.MATH)
    for name, got, dx in zip(
        "qkv", gradients(SDPBackend.FLASH_ATTENTION), right, strict=True
    ):
        factor = float(got.norm() / dx.norm())
        print(f"torch {torch.__version__} {dtype} d{name}: {factor:.3g} times it")
        wrong |= abs(factor - 1) > 1e-3
sys.exit(wrong)
