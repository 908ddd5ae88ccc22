"""liger-kernel 0.8.5: a second backward through SwiGLU is silently wrong.

The backward writes the gradients over the saved inputs, in Triton, where PyTorch counts
no write; that of GeGLU does, too. So `retain_graph=True` raises nothing, and the second
sweep takes gradients for inputs. To raise, the version of what was saved has to be
bumped, as `torch.autograd.graph.increment_version` does.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # runs without a GPU

import numpy as np
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from liger_kernel.ops.swiglu import LigerSiLUMulFunction


def scalar(value, plain=interpreter._implicit_cvt):
    """On a GPU a kernel gets a scalar for a Python float; here it has to be made one."""
    if not isinstance(value, float):
        return plain(value)
    held = interpreter.TensorHandle(np.array([value], np.float32), tl.float32)
    return tl.tensor(held, tl.float32)


interpreter._implicit_cvt = scalar

torch.manual_seed(0)
a, b, dy = torch.randn(3, 4, 16)
leaves = [t.requires_grad_() for t in (a, b)]
y = LigerSiLUMulFunction.apply(a * 1, b * 1)
sweeps = [torch.autograd.grad(y, leaves, dy, retain_graph=True) for _ in range(2)]
off = max(float((s - t).abs().max()) for s, t in zip(*sweeps, strict=True))
print(f"two sweeps of one graph differ by {off:.3g}")
sys.exit(off > 1e-3)
