"""Imports PyTorch, with settings that make runs comparable."""

import contextlib
import os
from typing import Any

import torch

TRAITS = {
    "title": "PyTorch",
    "shares_memory": True,
    "second_order_listed": True,
    "finishes_importing": True,  # half a second: sympy, 40,000 objects
    # torch.compile and torch.utils.checkpoint import torch._dynamo, which wraps it.
    "replaces": ("manual_seed",),
    # TF32 on a GPU, sums in 16 bits, and how cuDNN chooses.
    "settings": (
        "backends.cuda.matmul.fp32_precision",  # from PyTorch 2.9 on
        "backends.cudnn.conv.fp32_precision",
        "backends.cudnn.rnn.fp32_precision",
        "backends.cuda.matmul.allow_tf32",
        "backends.cudnn.allow_tf32",
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
        "backends.cuda.matmul.allow_fp16_accumulation",  # from PyTorch 2.7 on
        "backends.cudnn.benchmark",
    ),
}


def allow_tf32(allowed: bool) -> None:
    """Whether float32 products and convolutions on a GPU may use TF32, with 11 bits.

    From 2.9 on PyTorch has `fp32_precision` beside `allow_tf32`, and where the two
    differ its own getters raise: both are set. Each kind of operation is named, because
    a general setting gives way to theirs (docs.pytorch.org, notes/cuda.html).
    """
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    cuda.matmul.allow_tf32 = allowed
    cudnn.allow_tf32 = allowed
    kinds: list[Any] = [getattr(cudnn, name, None) for name in ("conv", "rnn")]
    for kind in filter(_has_new_switch, (cuda.matmul, *kinds)):
        kind.fp32_precision = "tf32" if allowed else "ieee"


def keep_sums_wide() -> None:
    """Let products of 16 bits add in float32, which is what they are judged by.

    By default a GPU may add up parts of them in 16 bits (docs.pytorch.org,
    notes/cuda.html, "Reduced Precision Reduction").
    """
    products = torch.backends.cuda.matmul
    for name in ("fp16", "bf16"):
        # PyTorch 1.12 has no such switch for bfloat16, and fails an assertion.
        with contextlib.suppress(AttributeError, AssertionError):
            setattr(products, f"allow_{name}_reduced_precision_reduction", False)


def _has_new_switch(kind: Any) -> bool:
    """Whether `fp32_precision` is there; PyTorch 1.12 fails an assertion if asked."""
    try:
        return hasattr(kind, "fp32_precision")
    except AssertionError:
        return False


torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
allow_tf32(os.environ.get("GRADWATCH_TF32") == "1")
keep_sums_wide()
torch.backends.cudnn.benchmark = False  # the same algorithm in every run

__all__ = ["torch"]
