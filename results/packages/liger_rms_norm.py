"""liger-kernel 0.8.5: RMSNorm overwrites its cotangent, and a skip connection's with it.

`in_place=True` is the default: dx is written over dy. Autograd hands one and the same
dy to both terms of a sum, so that the gradient by the skip is dx of the norm. Silent.
PolyNorm has the same default.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # runs without a GPU

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from liger_kernel.ops import rms_norm


def scalar(value, plain=interpreter._implicit_cvt):
    """On a GPU a kernel gets a scalar for a Python float; here it has to be made one."""
    if not isinstance(value, float):
        return plain(value)
    held = interpreter.TensorHandle(np.array([value], np.float32), tl.float32)
    return tl.tensor(held, tl.float32)


interpreter._implicit_cvt = scalar
rms_norm.rsqrt = lambda x: 1 / tl.sqrt(x)  # the interpreter has no libdevice

torch.manual_seed(0)
x, skip, dy = (t.requires_grad_() for t in torch.randn(3, 4, 16))
weight = torch.ones(16, requires_grad=True)
errors = {}
for in_place in (False, True):
    norm = rms_norm.LigerRMSNormFunction.apply(x * 1, weight, 1e-6, 0.0, "llama", in_place)
    cotangent = dy.detach().clone()
    dx, dskip = torch.autograd.grad(norm + skip, (x, skip), cotangent)
    errors[in_place] = float((dskip - dy.detach()).abs().max())
print(f"the gradient by the skip is off by {errors} (in place or not)")
sys.exit(errors[True] > 1e-3)
