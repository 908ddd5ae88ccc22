"""Measures the cost and the detection of a check at the usual sizes of kernels.

    python -m scripts.studies.size [NAME ...] [--mistakes] [--whole]

For each function the processor time of one trial and of its judging, as ratios to
PyTorch's own float64 gradient, and the peak of memory over the tensors judged (inputs,
outputs, cotangents, gradients); `--whole` adds that of a default check. `--mistakes`
plants each mistake that fits into a gradient, and shows which are rejected and named.
Each function has a process of its own. Exit code 1 if a right one is accused, or a
mistake is not.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import click
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # as in its documentation

from gradwatch import check
from gradwatch.harness.check.examine import Bench
from gradwatch.harness.judging.question import Question

Function = Callable[..., Tensor]
LABELS, WORDS = torch.arange(4096) % 32000, torch.arange(10**6) * 7919 % 10_000


def norm(eps: float) -> Function:
    """RMS norm."""
    return lambda x, w: F.rms_norm(x, w.shape, w, eps)


def layer_norm(eps: float) -> Function:
    """Layer norm."""
    return lambda x, w, b: F.layer_norm(x, w.shape, w, b, eps)


#: A function and its shapes; the first gradient gets mistakes. Of 32,000 columns there
#: are 1,024 rows: of 4,096 PyTorch alone takes gigabytes.
FUNCTIONS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "softmax": (lambda x: x.softmax(-1), [(4096, 4096)]),
    "layer_norm": (layer_norm(1e-5), [(8192, 4096), (4096,), (4096,)]),
    "matmul": (torch.matmul, [(2048, 2048)] * 2),
    "conv2d": (
        lambda x, w: F.conv2d(x, w, padding=1),
        [(8, 64, 56, 56), (64, 64, 3, 3)],
    ),
    "attention": (F.scaled_dot_product_attention, [(1, 8, 1024, 64)] * 3),
    "rms_norm": (norm(1e-6), [(1024, 32000), (32000,)]),
    "cross_entropy": (lambda x: F.cross_entropy(x, LABELS[: len(x)]), [(1024, 32000)]),
    "embedding": (lambda w: F.embedding(WORDS % len(w), w), [(10_000, 16)]),
}


def _row_in_bfloat16(dx: Tensor) -> None:
    row = dx.view(-1, dx.shape[-1])[5]
    row.copy_(row.bfloat16())


def _swapped(dx: Tensor) -> None:
    flat = dx.view(-1)
    flat[:128], flat[128:256] = flat[128:256].clone(), flat[:128].clone()


def _element(dx: Tensor) -> None:
    dx.view(-1)[dx.numel() // 3] *= 1.01


def _parts(dx: Tensor) -> Tensor:
    """Blocks of a gradient: heads or channels, or eight bands of a matrix's rows."""
    return dx[0] if dx.ndim > 2 else dx.view(8, -1)


#: Functions that plant a mistake in a right gradient, in place.
MISTAKES: dict[str, Callable[[Tensor], Any]] = {
    "one element": _element,
    "the tail of the last block": lambda dx: dx.view(-1)[-17:].zero_(),
    "one row": lambda dx: dx.view(-1, dx.shape[-1])[7].mul_(1.001),
    "one head": lambda dx: _parts(dx)[3].zero_(),
    "a row's sums in bfloat16": _row_in_bfloat16,
    "a swapped tile": _swapped,
    "a lost split of a sum": lambda dx: dx.view(-1, dx.shape[-1])[-64:].mul_(63 / 64),
    "an eps outside": lambda dx: dx.mul_(1 + 5e-5),
    "beyond element 2^24": lambda dx: dx.view(-1)[1 << 24 :].mul_(1.001),
}

#: Functions with another eps than above: beside a variance of 1 the allowed error hides
#: an eps that is twice as large.
INSIDE = {"layer_norm": layer_norm(1e-4), "rms_norm": norm(1e-4)}


def changed(function: Function, mistake: Callable[[Tensor], Any]) -> Function:
    """The function, with a mistake in the gradient of its first input."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *dys: Tensor) -> Tensor:
            dx = dys[0].clone(memory_format=torch.contiguous_format)
            mistake(dx)
            return dx

    return lambda x, *more: function(Wrong.apply(x), *more)


def memory(name: str) -> float:
    """A figure of this process in bytes: VmHWM, the peak, or VmRSS."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * float(re.findall(rf"{name}:\s+(\d+)", status)[0])


def made(shapes: list[tuple[int, ...]], least: int = 1 << 40) -> list[Tensor]:
    """Tensors of normal numbers, with lengths up to `least`."""
    torch.manual_seed(0)
    return [torch.randn([min(n, least) for n in shape]) for shape in shapes]


def exact(function: Function, inputs: list[Tensor], dy: Tensor) -> float:
    """Seconds of PyTorch's gradient in float64, of tensors in float32."""
    started = time.process_time()
    leaves = [x.double().requires_grad_() for x in inputs]
    torch.autograd.backward(function(*leaves), dy.double())
    return time.process_time() - started


def costs(name: str, whole: bool) -> Iterator[str]:
    """The cells of a row: the least of three times, as a busy machine only adds."""
    function, shapes = FUNCTIONS[name]
    check(function, inputs=made(shapes, 64), quick=True)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak until now
    before, judge, asked = memory("VmRSS"), Question.judge, list[Any]()

    def noted(*given: Any) -> Any:
        asked.append(given)
        return judge(*given)

    inputs = made(shapes)
    dy = torch.randn_like(function(*inputs))
    size = 8 * sum(x.numel() for x in (*inputs, dy))
    started = time.process_time()
    with mock.patch.object(Question, "judge", noted):
        report = check(function, inputs=inputs, quick=True)
    one, peak = time.process_time() - started, memory("VmHWM") - before
    times = [(exact(function, inputs, dy), judged(*asked[0])) for _ in range(3)]
    alone, judging = map(min, zip(*times, strict=True))
    yield from (f"{alone:.2f} s", f"{judging / alone:.1f}", f"{one / alone:.1f}")
    yield f"{peak / size:.1f}"
    started, clock = time.process_time(), time.monotonic()
    if whole:
        report = check(function, inputs=inputs)
        yield f"{time.process_time() - started:.0f} s, {time.monotonic() - clock:.0f} s"
    yield "passes" if report.passes else f"FAILS: {report}"


def judged(question: Question, *got: Any) -> float:
    """The seconds of judging as a check does, from the graph on."""
    started = time.process_time()
    with threadpool_limits(1, "blas"):
        Question(question.build, question.dtype, question.compute).judge(*got)
    return time.process_time() - started


def found(name: str) -> Iterator[str]:
    """A line for each mistake: rejected or not, and its diagnosis.

    Also the seconds of judging and diagnosis, and those of the whole check.
    """
    function, shapes = FUNCTIONS[name]
    inputs = made(shapes)
    planted = {said: changed(function, m) for said, m in MISTAKES.items()}
    if inputs[0].numel() <= 1 << 24:
        del planted["beyond element 2^24"]
    if name in INSIDE:
        planted["an eps inside"] = INSIDE[name]
    judge, took = Bench._judge, [0.0]

    def timed(*given: Any) -> Any:
        started = time.process_time()
        judged = judge(*given)
        took[0] += time.process_time() - started
        return judged

    for said, candidate in planted.items():
        started, took[0] = time.process_time(), 0.0
        with mock.patch.object(Bench, "_judge", timed):
            report = check(function, candidate, inputs, quick=True)
        whole = time.process_time() - started
        wrong = [r.judgement for r in report.failures if r.judgement.tensor[0] == "d"]
        why = wrong[0].diagnosis or wrong[0].message if wrong else str(report)
        seconds = f"{took[0]:.1f} s | {whole:.1f} s"
        yield f"{'rejected' if wrong else 'MISSED'} | {said} | {seconds} | {why}"


def lines(name: str, mistakes: bool, whole: bool) -> list[str]:
    """The rows of a function, in Markdown."""
    rows = found(name) if mistakes else [" | ".join(costs(name, whole))]
    return [f"| {name} | {row} |" for row in rows]


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*FUNCTIONS]))
@click.option("--mistakes", is_flag=True)
@click.option("--whole", is_flag=True)
def main(names: tuple[str, ...], *, mistakes: bool, whole: bool) -> None:
    """Print a row for each function, in Markdown."""
    said = list[str]()
    for name in names or FUNCTIONS:
        # One that is killed for its memory is an error; a Pool would wait for ever.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            rows = fresh.submit(lines, name, mistakes, whole).result()
        click.echo("\n".join(rows))
        said += rows
    sys.exit(any("FAILS" in row or "MISSED" in row for row in said))


if __name__ == "__main__":
    main()
