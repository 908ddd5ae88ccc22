"""What judging large tensors costs beside gradcheck's fast mode, in a plain process.

    python scripts/studies/judging_at_size.py --seconds 4

Ops of several kinds at 65,536 and 1,048,576 elements, on one thread. The allocator is
as a user's process has it: nothing is pinned. The judgements in float64 and float32
and `gradcheck(fast_mode=True)` of the page's Function in float64 are timed in turn, so
that the ratios have intervals. Memory is what Python's allocations and NumPy's arrays
hold at the most during a judgement (tracemalloc), over the bytes of the op's inputs.
Prints the table of docs/selftest.md; nothing is asserted here.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported

import tracemalloc
from functools import partial

import click
import numpy as np
import torch

from gradwatch.harness import judge
from gradwatch.harness.timing.interleave import interleave
from gradwatch.harness.timing.samples import paired
from gradwatch.impls import catalogue
from gradwatch.impls.backends._torchlike import as_function

#: Shapes of the differentiable inputs by number of elements, and attributes.
OPS = {
    "layer_norm": (lambda n: [(n // 1024, 1024), (1024,), (1024,)], {"eps": 1e-5}),
    "softmax": (lambda n: [(n // 1024, 1024)], {"axis": -1}),
    "matmul": (lambda n: [(round(n**0.5),) * 2] * 2, {}),
    "exp2": (lambda n: [(n,)], {}),
    "batch_norm": (
        lambda n: [(n // 4096, 64, 8, 8), (64,), (64,)],
        {"eps": 1e-5, "momentum": 0.1, "training": True},
    ),
}
SIZES = (65_536, 1_048_576)
DTYPES = ("float64", "float32")


class Subject:
    """An op at one size: its arrays, its Function, and right gradients."""

    def __init__(self, name: str, size: int) -> None:
        shapes, self.attributes = OPS[name]
        rng = np.random.default_rng(size)
        self.op = catalogue.load_op(name)
        self.arrays = [rng.standard_normal(shape) for shape in shapes(size)]
        zero_and_one = ([np.zeros(64), np.ones(64)])[: len(self.op.state)]
        self.state = zero_and_one
        said = self.op.said("custom")
        self.function = as_function(torch, said, self.attributes).apply
        self.dy = rng.standard_normal(self.forward(*self.tensors("float64")).shape)

    def tensors(self, dtype: str):
        """The inputs that have gradients, as leaves."""
        made = [torch.from_numpy(array.astype(dtype)) for array in self.arrays]
        return [tensor.requires_grad_() for tensor in made]

    def forward(self, *inputs):
        """The Function; its running values are new each time."""
        state = [torch.from_numpy(a.astype("float64")) for a in self.state]
        y = self.function(*inputs, *(a.to(inputs[0].dtype) for a in state))
        return y[0] if isinstance(y, tuple) else y

    def judged(self, dtype: str):
        """A judgement of the Function's gradients in this precision."""
        inputs = self.tensors(dtype)
        dy = self.dy.astype(dtype)
        gradients = torch.autograd.grad(
            self.forward(*inputs), inputs, torch.from_numpy(dy)
        )
        arrays = [a.astype(dtype) for a in (*self.arrays, *self.state)]
        got = [gradient.numpy() for gradient in gradients]

        def run():
            found = judge(self.op, arrays, dy, got, attributes=self.attributes)
            assert all(j.verdict == "agree" for j in found), found

        return run, sum(a.nbytes for a in arrays)


def memory(run) -> int:
    """Bytes held at the most, beyond those held before."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def row(name: str, size: int, seconds: float) -> list[str]:
    """Milliseconds, ratios with their 95 % intervals, and memory over input."""
    subject = Subject(name, size)
    judged = {dtype: subject.judged(dtype) for dtype in DTYPES}
    runs = {dtype: run for dtype, (run, _) in judged.items()}
    leaves = subject.tensors("float64")
    runs["fast"] = partial(
        torch.autograd.gradcheck, subject.forward, leaves, fast_mode=True
    )
    taken = interleave(runs, budget=seconds)
    ratios = []
    for dtype in DTYPES:
        r = paired(taken["fast"], taken[dtype]).ratio
        ratios.append(f"{r.value:.2f} ({r.low:.2f} to {r.high:.2f})")
    peaks = [f"{memory(run) / held:.1f}" for run, held in judged.values()]
    times = [f"{1e3 * taken[each].median:.3g}" for each in (*DTYPES, "fast")]
    return [name, f"{size:,}", *times, *ratios, *peaks]


@click.command()
@click.option("--seconds", default=4.0, help="For each op and size.")
@click.option("--op", "ops", multiple=True, type=click.Choice([*OPS]))
@click.option("--size", "sizes", multiple=True, type=int)
def main(seconds: float, ops: tuple[str, ...], sizes: tuple[int, ...]) -> None:
    """Print one row for each op and size."""
    torch.set_num_threads(1)
    head = (
        *("op", "elements", "float64, ms", "float32, ms", "gradcheck fast, ms"),
        *("float64 / gradcheck", "float32 / gradcheck"),
        *("memory / input, float64", "float32"),
    )
    click.echo(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for size in sizes or SIZES:
        for name in ops or OPS:
            click.echo(f"| {' | '.join(row(name, size, seconds))} |")


if __name__ == "__main__":
    main()
