"""What one judgement costs beside gradcheck and beside the framework's own work.

    python scripts/studies/judgement.py --seconds 5

layer_norm in float64 at several sizes, on one thread, each judge timed in turn with the
others; gradcheck, which is made for custom Functions, gets the page's. Its slow form is
left out where it would take minutes. `again` is a judgement with a reference that is
there already, as for the second and further backends of `gradwatch agree`. Prints the
table of docs/selftest.md; nothing is asserted here.
"""

import click
import numpy as np
import torch

from gradwatch.harness import judge
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.timing.interleave import interleave
from gradwatch.harness.workers.allocator import pin_malloc
from gradwatch.impls import catalogue
from gradwatch.impls.backends._torchlike import as_function
from gradwatch.impls.contract import Problem

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

    problem = Problem(
        catalogue.load_op("layer_norm"),
        dict(zip(("x", "weight", "bias"), arrays, strict=True)),
        [dy],
        EPS,
    )
    right = reference(problem)
    named = dict(zip(("dx", "dweight", "dbias"), gradients, strict=True))
    dtypes = dict.fromkeys(named, "float64")

    def again():
        found = judge_tensors(right, named, dtypes, dtype="float64")
        assert all(j.passes for j in found)

    def gradcheck(fast):
        return lambda: torch.autograd.gradcheck(forward, inputs, fast_mode=fast)

    runs = {"forward+backward": both, "judge": judged, "again": again}
    runs["fast"] = gradcheck(True)
    return runs | ({"slow": gradcheck(False)} if size <= SLOW_UP_TO else {})


@click.command()
@click.option("--seconds", default=5.0, help="For each size, beyond one call of each.")
def main(seconds: float) -> None:
    """Print one row for each size."""
    pin_malloc()
    torch.set_num_threads(1)
    head = (
        *("elements", "forward+backward, ms", "judge, ms", "again, ms"),
        *("gradcheck fast, ms", "gradcheck slow, ms"),
        *("fast / judge", "fast / again", "slow / judge"),
    )
    click.echo(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for size in SIZES:
        click.echo(f"| {size} | {' | '.join(row(layer_norm(size), seconds))} |")


def row(runs, seconds: float) -> list[str]:
    """Milliseconds of each, then ratios; empty where gradcheck slow was not run."""
    slow = runs.pop("slow", None)
    samples = interleave(runs, budget=seconds)
    took = {name: 1e3 * found.median for name, found in samples.items()}
    if slow:
        took["slow"] = 1e3 * interleave({"slow": slow}, budget=1)["slow"].median
    names = "forward+backward", "judge", "again", "fast", "slow"
    times = [f"{took[name]:.3g}" if name in took else "" for name in names]
    ratios = [("fast", "judge"), ("fast", "again"), ("slow", "judge")]
    return times + [f"{took[a] / took[b]:.2g}" if a in took else "" for a, b in ratios]


if __name__ == "__main__":
    main()
