"""What a check costs beside gradcheck's fast mode: the table of docs/check.md.

    python scripts/studies/check_cost.py

Processor seconds of one call: the first, and the smallest of seven more, as other work
on the machine only adds to it; and the ratio of the two. gradcheck takes float64 at the
same shapes, and compares one random projection of the gradient with differences of the
forward. `check` runs its trials in float32 and judges every element.
"""

import time
import warnings
from functools import partial

import torch

from gradwatch.harness.check import check

F = torch.nn.functional
SHAPE = (64, 1000)
FUNCTIONS = {
    "silu": (F.silu, [SHAPE]),
    "gelu": (F.gelu, [SHAPE]),
    "softmax": (partial(F.softmax, dim=-1), [SHAPE]),
    "log_softmax": (partial(F.log_softmax, dim=-1), [SHAPE]),
    "layer_norm": (lambda x: F.layer_norm(x, x.shape[-1:]), [SHAPE]),
    "rms_norm": (lambda x: F.rms_norm(x, x.shape[-1:]), [SHAPE]),
    "logsumexp": (partial(torch.logsumexp, dim=-1), [SHAPE]),
    "matmul": (torch.matmul, [(64, 100), (100, 32)]),
    "mse_loss": (F.mse_loss, [SHAPE, SHAPE]),
    "smooth_l1_loss": (F.smooth_l1_loss, [SHAPE, SHAPE]),
}


def seconds(call, times):
    """The first call's, and the smallest of some more."""
    taken = []
    for _ in range(1 + times):
        started = time.process_time()
        call()
        taken.append(time.process_time() - started)
    return taken[0], min(taken[1:])


def main():
    """One line of a Markdown table for each function."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| function | check, first | check | gradcheck fast | check / gradcheck |")
    print("|---|---:|---:|---:|---:|")
    for name, (function, shapes) in FUNCTIONS.items():
        made = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
        first, later = seconds(lambda f=function, s=shapes: check(f, shapes=s), 7)
        _, fast = seconds(
            lambda f=function, m=made: torch.autograd.gradcheck(f, m, fast_mode=True), 7
        )
        times = f"{first:.2f} s | {later:.2f} s | {fast:.4f} s | {later / fast:.0f}"
        print(f"| {name} | {times} |", flush=True)


if __name__ == "__main__":
    main()
