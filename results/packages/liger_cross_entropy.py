"""liger-kernel 0.8.5: the gradient by logits that are not contiguous is the logits.

`cross_entropy_forward` copies them with `.contiguous()` inside `Function.forward`,
where nothing requires a gradient, and then asks the copy: HAS_GRADIENTS is false, no
gradient is written, and the backward returns what was saved. Silent, in each reduction.
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # runs without a GPU

import torch
from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

torch.manual_seed(0)
labels = torch.tensor([1, 2, 3, 4])
x = torch.randn(10, 4).t()
errors = {}
for name, logits in (("contiguous", x.contiguous()), ("transposed", x)):
    leaf = logits.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    loss = LigerCrossEntropyFunction.apply(leaf * 1, labels, None)[0]
    (got,) = torch.autograd.grad(loss, leaf)
    right = (torch.softmax(x, -1) - torch.nn.functional.one_hot(labels, 10)) / 4
    errors[name] = float((got - right).abs().max())
print(f"largest errors {errors}")
sys.exit(errors["transposed"] > 1e-3)
