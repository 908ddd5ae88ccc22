"""PyTorch's settings of products on a GPU: TF32, and sums of 16 bits."""

from typing import Any

import torch


def product_settings(tf32: bool) -> list[tuple[Any, str, Any]]:
    """Return owner, name and value of each setting that this PyTorch has, in order.

    From 2.9 on PyTorch has `fp32_precision` beside `allow_tf32`, and where the two
    differ its own getters raise: both are set, the old one first. Each kind of
    operation is named, because a general setting gives way to theirs. By default a GPU
    may add up parts of products of 16 bits in 16 bits; they are judged by sums in
    float32 (docs.pytorch.org, notes/cuda.html).
    """
    products, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    kinds = [products, getattr(cudnn, "conv", None), getattr(cudnn, "rnn", None)]
    wanted = [
        (products, "allow_tf32", tf32),
        (cudnn, "allow_tf32", tf32),
        *((kind, "fp32_precision", "tf32" if tf32 else "ieee") for kind in kinds),
        (products, "allow_fp16_reduced_precision_reduction", False),
        (products, "allow_bf16_reduced_precision_reduction", False),
    ]
    return [setting for setting in wanted if has_setting(*setting[:2])]


def has_setting(owner: Any, name: str) -> bool:
    """Return whether there is such a setting; PyTorch 1.12 fails an assertion."""
    try:
        return hasattr(owner, name)
    except RuntimeError:  # its getter: the two interfaces contradict each other
        return True
    except AssertionError:
        return False
