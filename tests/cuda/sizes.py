"""Kernels in Triton at the size where they live, for the table of docs/cuda.md.

    python -m tests.cuda.sizes [NAME ...] [--dtype DTYPE] [--mistakes]

Of each kernel and precision: microseconds of a forward and backward (of PyTorch's own
likewise), seconds of a check at this size alone with the peak of the GPU's memory over
the tensors judged (inputs, output, cotangent, gradients), and what PyTorch's gradcheck
(fast mode) and assert_close say. With `--mistakes`, which of the planted ones each of
the three rejects.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import click
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # as in its documentation
from triton.testing import do_bench

from gradwatch import check
from scripts.studies.size import Function, changed
from tests.cuda.triton_kernels import Attention, LayerNorm, Softmax

#: By name: the definition, the kernel, and the shapes of the inputs.
KERNELS: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "softmax": (lambda x: x.softmax(-1), Softmax.apply, [(4096, 4096)]),
    "layer_norm": (
        lambda x, weight, bias: F.layer_norm(x, weight.shape, weight, bias),
        LayerNorm.apply,
        [(4096, 4096), (4096,), (4096,)],
    ),
    "attention": (
        F.scaled_dot_product_attention,
        Attention.apply,
        [(4, 32, 2048, 128)] * 3,
    ),
}

#: What is done to a right gradient in place.
MISTAKES: dict[str, Callable[[Tensor], Any]] = {
    "an element": lambda dx: dx.view(-1)[dx.numel() // 3].mul_(1.05),
    "a tail": lambda dx: dx.view(-1)[-17:].zero_(),
    "a row": lambda dx: dx.view(-1, dx.shape[-1])[7].mul_(1.05),
    "a factor": lambda dx: dx.mul_(1.01),
    "a zero": lambda dx: dx.zero_(),
}


def planted(kernel: Function, mistake: str) -> Function:
    """The kernel, with a mistake in the gradient of its first input."""
    return changed(kernel, MISTAKES[mistake])


def made(shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    """Ordinary numbers on the GPU that require a gradient."""
    torch.manual_seed(0)
    return [torch.randn(s, device="cuda").to(dtype).requires_grad_() for s in shapes]


def swept(function: Function, inputs: list[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    """All gradients of one forward and backward."""
    return torch.autograd.grad(function(*inputs), inputs, dy)


def gradcheck_says(function: Function, inputs: list[Tensor]) -> str:
    """Whether PyTorch's gradcheck accepts it in its fast mode, and seconds."""
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it wants float64
        try:
            right = torch.autograd.gradcheck(
                function, inputs, fast_mode=True, raise_exception=False
            )
            said = "accepts" if right else "rejects"
        except RuntimeError as error:
            said = type(error).__name__
    return f"{said}, {time.monotonic() - started:.1f} s"


def assert_close_says(
    reference: Function, kernel: Function, inputs: list[Tensor], dy: Tensor
) -> str:
    """Whether assert_close accepts all gradients beside PyTorch's own."""
    try:
        torch.testing.assert_close(
            swept(kernel, inputs, dy), swept(reference, inputs, dy)
        )
    except AssertionError:
        return "rejects"
    return "accepts"


def check_says(reference: Function, kernel: Function, inputs: list[Tensor]) -> str:
    """The verdict of a check at this size, with seconds and memory of the GPU."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    started = time.monotonic()
    report = check(reference, kernel, inputs, quick=True, device="cuda")
    seconds = time.monotonic() - started
    judged = 2 * sum(x.numel() * x.element_size() for x in (inputs[0], *inputs))
    peak = (torch.cuda.max_memory_allocated() - held) / judged
    said = "passes" if report.passes else "fails"
    if not report.passes and sys.stderr.isatty():
        click.echo(str(report), err=True)
    return f"{said}, {seconds:.1f} s, {peak:.1f}"


def row(name: str, dtype: str) -> list[str]:
    """The cells of one kernel in one precision."""
    reference, kernel, shapes = KERNELS[name]
    inputs = made(shapes, getattr(torch, dtype))
    dy = torch.randn_like(inputs[0])
    times = [
        1e3 * do_bench(lambda f=f: swept(f, inputs, dy), warmup=20, rep=100)
        for f in (kernel, reference)
    ]
    return [
        f"{times[0]:.0f}",
        f"{times[1]:.0f}",
        check_says(reference, kernel, inputs),
        gradcheck_says(kernel, inputs),
        assert_close_says(reference, kernel, inputs, dy),
    ]


def rejected(name: str, dtype: str, mistake: str) -> list[str]:
    """What each of the three says of one planted mistake."""
    reference, kernel, shapes = KERNELS[name]
    inputs = made(shapes, getattr(torch, dtype))
    dy, wrong = torch.randn_like(inputs[0]), planted(kernel, mistake)
    return [
        mistake,
        check_says(reference, wrong, inputs),
        gradcheck_says(wrong, inputs),
        assert_close_says(reference, wrong, inputs, dy),
    ]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*KERNELS]))
@click.option("--dtype", "dtypes", multiple=True, default=["float32", "bfloat16"])
@click.option("--mistakes", is_flag=True)
def main(names: tuple[str, ...], dtypes: tuple[str, ...], *, mistakes: bool) -> None:
    """Print a row for each kernel and precision, in Markdown."""
    for name in names or KERNELS:
        for dtype in dtypes:
            rows = [row(name, dtype)]
            if mistakes:
                rows = [rejected(name, dtype, mistake) for mistake in MISTAKES]
            for cells in rows:
                click.echo(f"| {' | '.join([name, dtype, *cells])} |")


if __name__ == "__main__":
    main()
