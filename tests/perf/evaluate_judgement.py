"""What one judgement costs beside gradcheck and beside the framework's own work.

    python tests/perf/evaluate_judgement.py --seconds 5

layer_norm in float64 at several sizes, on one thread, each judge timed in turn with the
others; gradcheck, which is made for custom Functions, gets the page's. Its slow form is
left out where it would take minutes. Prints the table of docs/selftest.md; nothing is
asserted here.
"""

import click
import numpy as np
import torch

from harness import judge
from harness.allocator import pin_malloc
from harness.clock import interleave
from impls import catalogue
from impls.backends._torchlike import as_function

SIZES = (16, 256, 4096, 65536)
SLOW_UP_TO = 4096  # elements: the time of gradcheck slow grows as their square
WIDTH = 16
EPS = {"eps": 1e-5}


def layer_norm(size: int):
    """A judgement, two gradchecks, and the forward and backward that they judge."""
    rng = np.random.default_rng(size)
    shapes = (size // WIDTH, WIDTH), (WIDTH,), (WIDTH,)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    dy = rng.standard_normal(shapes[0])
    inputs = [torch.from_numpy(array).requires_grad_() for array in arrays]

    said = catalogue.load_op("layer_norm").said("custom")
    forward = as_function(torch, said, EPS).apply

    def both():
        return torch.autograd.grad(forward(*inputs), inputs, torch.from_numpy(dy))

    gradients = [gradient.numpy() for gradient in both()]

    def judged():
        found = judge("layer_norm", arrays, dy, gradients, attributes=EPS)
        assert all(j.passes for j in found)

    def gradcheck(fast):
        return lambda: torch.autograd.gradcheck(forward, inputs, fast_mode=fast)

    runs = {"forward+backward": both, "judge": judged, "fast": gradcheck(True)}
    return runs | ({"slow": gradcheck(False)} if size <= SLOW_UP_TO else {})


@click.command()
@click.option("--seconds", default=5.0, help="For each size, beyond one call of each.")
def main(seconds: float) -> None:
    """Print one row for each size."""
    pin_malloc()
    torch.set_num_threads(1)
    head = "elements", "judge, ms", "forward+backward, ms", "gradcheck fast / judge"
    click.echo(f"| {' | '.join(head)} | gradcheck slow / judge |")
    click.echo("|---" * 5 + "|")
    for size in SIZES:
        runs = layer_norm(size)
        slow = runs.pop("slow", None)
        samples = interleave(runs, budget=seconds)
        judge_, fast = samples["judge"].median, samples["fast"].median
        both = samples["forward+backward"].median
        ratio = "not run"
        if slow:
            ratio = (
                f"{interleave({'slow': slow}, budget=1)['slow'].median / judge_:.0f}"
            )
        cells = (size, f"{judge_ * 1e3:.2f}", f"{both * 1e3:.2f}")
        told = " | ".join(map(str, (*cells, f"{fast / judge_:.2f}", ratio)))
        click.echo(f"| {told} |")


if __name__ == "__main__":
    main()
