"""Imports PyTorch, with settings that make runs comparable."""

import os

import torch

from gradwatch.impls.backends._torch_products import product_settings

TRAITS = {
    "title": "PyTorch",
    "forks": True,
    "compiles_into": "TORCHINDUCTOR_CACHE_DIR",
    "shares_memory": True,
    "second_order_listed": True,
    "finishes_importing": True,  # half a second: sympy, 40,000 objects
    # torch.compile and torch.utils.checkpoint import torch._dynamo, which wraps it.
    "replaces": ("manual_seed",),
    # TF32 on a GPU, sums in 16 bits, and how cuDNN chooses.
    "settings": (
        "_C._len_torch_dispatch_stack",  # modes, which see every call
        "_C._len_torch_function_stack",
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
    """Let float32 products on a GPU use TF32, with 11 bits, or not."""
    for owner, name, value in product_settings(allowed):
        setattr(owner, name, value)


torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
allow_tf32(os.environ.get("GRADWATCH_TF32") == "1")
torch.backends.cudnn.benchmark = False  # the same algorithm in every run

__all__ = ["torch"]
