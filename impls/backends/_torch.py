"""Imports PyTorch, with settings that make runs comparable."""

import os

import torch

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.backends.cuda.matmul.allow_tf32 = False  # tf32 has only 10 bits of mantissa
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = False  # the same algorithm in every run

__all__ = ["torch"]
