"""What one judgement costs beside gradcheck and beside the framework's own work.

    python tests/perf/evaluate_judgement.py --seconds 5

One op in float64 at several sizes, on one thread, each judge timed in turn with the
others; gradcheck slow is skipped where it would take minutes. The figures are ratios to
one forward and backward of PyTorch at the same point. Nothing is asserted here: the
targets stand beside the table in docs/selftest.md.
"""

import click
import numpy as np
import torch

from harness import judge
from harness.clock import interleave

SIZES = (16, 256, 4096, 65536)
SLOW_UP_TO = 4096  # elements: the time of gradcheck slow grows as their square
WIDTH = 16


def layer_norm(size: int):
    """A judgement, two gradchecks, and the forward and backward that they judge."""
    rng = np.random.default_rng(size)
    shapes = (size // WIDTH, WIDTH), (WIDTH,), (WIDTH,)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    dy = rng.standard_normal(shapes[0])
    inputs = [torch.from_numpy(array).requires_grad_() for array in arrays]

    def forward(x, weight, bias):
        return torch.nn.functional.layer_norm(x, (WIDTH,), weight, bias)

    def both():
        return torch.autograd.grad(forward(*inputs), inputs, torch.from_numpy(dy))

    gradients = [gradient.numpy() for gradient in both()]

    def judged():
        found = judge("layer_norm", arrays, dy, gradients, attributes={"eps": 1e-5})
        assert all(j.passes for j in found)

    def gradcheck(fast):
        return lambda: torch.autograd.gradcheck(forward, inputs, fast_mode=fast)

    runs = {"forward+backward": both, "judge": judged, "fast": gradcheck(True)}
    return runs | ({"slow": gradcheck(False)} if size <= SLOW_UP_TO else {})


@click.command()
@click.option("--seconds", default=5.0, help="For each size, beyond one call of each.")
def main(seconds: float) -> None:
    """Print one line for each size: seconds of a judgement, then ratios."""
    torch.set_num_threads(1)
    click.echo("elements  judge, ms  to forward+backward  slow to judge  fast to judge")
    for size in SIZES:
        runs = layer_norm(size)
        slow = runs.pop("slow", None)
        samples = interleave(runs, budget=seconds)
        took = {name: found.median for name, found in samples.items()}
        if slow:
            took["slow"] = interleave({"slow": slow}, budget=seconds)["slow"].median
        click.echo(
            f"{size:8} {took['judge'] * 1e3:10.2f}"
            f" {took['judge'] / took['forward+backward']:20.1f}"
            f" {took.get('slow', np.nan) / took['judge']:14.1f}"
            f" {took['fast'] / took['judge']:14.2f}"
        )


if __name__ == "__main__":
    main()
