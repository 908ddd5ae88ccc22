"""conv3d in bfloat16 on a CPU: the weight's gradient holds memory that nobody wrote.

So does oneDNN's backward where a padded input is less deep than the kernel (2 and 3, as
behind the strides of a 3-D ResNet), and one side has 16 channels or more: slices are
nan, 1e36, or numbers like any others, another time others. Seen with AVX-512. Right are
AMX, AVX2, float32, float16 and torch.backends.mkldnn.flags(enabled=False).
"""

import sys

import torch

# Entries of OpInfo whose disagreements this explains: theirs have fewer channels.
ENTRIES = ()

torch.manual_seed(0)
x, w = torch.randn(1, 16, 2, 4, 4), torch.randn(16, 16, 3, 3, 3)
dy = torch.randn(1, 16, 2, 4, 4)


def gradient(dtype):
    weight = w.to(dtype).requires_grad_()
    y = torch.nn.functional.conv3d(x.to(dtype), weight, padding=1)
    return torch.autograd.grad(y, weight, dy.to(dtype))[0].double()


right, wrong = gradient(torch.float64), False
for _ in range(10):
    torch.full((1 << 16,), torch.nan, dtype=torch.bfloat16)  # used, and free again
    got = gradient(torch.bfloat16)
    wrong = wrong or not bool((got - right).norm() <= 0.1 * right.norm())
at = int((got - right).abs().nan_to_num(torch.inf).argmax())
told, due = float(got.view(-1)[at]), float(right.view(-1)[at])
print(f"torch {torch.__version__}: got {told:.6g}, expected {due:.6g}")
sys.exit(wrong)
