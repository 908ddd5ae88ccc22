"""Measures how accurate the clock is: a run compared with itself, planted slowdowns.

    python scripts/studies/clock.py --repeats 40 --seconds 2

Times PyTorch's layer_norm on one thread while another process constantly copies memory
on one core. Each comparison of a run with itself is followed by
torch.utils.benchmark's `blocked_autorange` of one side after the other, in the same
repeat and for the same time. Nothing is asserted: a person reads the figures.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import repeat

import click
import numpy as np

from harness.timing.interleave import compare
from harness.timing.memory import page_aligned
from harness.workers.allocator import pin_malloc

NEIGHBOUR = """
import os, sys
import numpy as np
here, there = np.ones((2, 8 << 20), np.uint8)
while os.getppid() == int(sys.argv[1]):
    np.copyto(there, here)
"""

Step = Callable[[], object]


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Another process that loads one core and the memory until the block ends."""
    command = [sys.executable, "-c", NEIGHBOUR, str(os.getpid())]
    neighbour = subprocess.Popen(command)
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def layer_norm(rows: int) -> tuple[Step, Step]:
    """Forward with backward, and backward alone, of rows x 1024 in float32."""
    import torch

    rng = np.random.default_rng(0)
    shapes = (rows, 1024), (1024,), (1024,), (rows, 1024)
    x, weight, bias, dy = (
        torch.from_numpy(page_aligned(rng.standard_normal(shape, np.float32)))
        for shape in shapes
    )
    inputs = [tensor.requires_grad_() for tensor in (x, weight, bias)]

    def forward() -> torch.Tensor:
        return torch.nn.functional.layer_norm(x, (1024,), weight, bias)

    y = forward()
    return (
        lambda: torch.autograd.grad(forward(), inputs, dy),
        lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True),
    )


def blocked_autorange(step: Step, seconds: float) -> float:
    """Log-ratio of two timings by torch.utils.benchmark, one after the other."""
    from torch.utils.benchmark import Timer

    timer = Timer("step()", globals={"step": step})
    a, b = (timer.blocked_autorange(min_run_time=seconds / 2).median for _ in "ab")
    return float(np.log(b / a))


def against_itself(repeats: int, seconds: float) -> dict[str, np.ndarray]:
    """For each method a row per repeat: log-ratio, and the ends of its interval."""
    both, backward = layer_norm(256)
    both(), backward()  # the framework's own first call is not the step's
    rows: dict[str, list[tuple[float, float, float]]] = {}

    def clock(name: str, a: Step, b: Step, seed: int) -> None:
        ratio = compare(a, b, budget=seconds, seed=seed).ratio
        logs = np.log([ratio.value, ratio.low, ratio.high])
        rows.setdefault(f"clock, {name}", []).append(tuple(logs))

    for seed in range(repeats):
        for name, step in (("forward+backward", both), ("backward", backward)):
            clock(name, step, step, seed)
            found = blocked_autorange(step, seconds)
            row = (found, np.nan, np.nan)
            rows.setdefault(f"blocked_autorange, {name}", []).append(row)
        clock("backward built twice", backward, layer_norm(256)[1], seed)
    return {name: np.array(found) for name, found in rows.items()}


def planted(runs: int, seconds: float, share: float) -> tuple[float, list[str], int]:
    """Backward against itself plus `share` more work, in busy loops.

    Returns the median ratio found, the verdicts, and how many intervals exclude 1.
    """
    _, backward = layer_norm(512)
    loops = calibrated(backward, share, seconds)

    def slower() -> None:
        backward()
        for _ in repeat(None, loops):
            pass

    found = [
        compare(backward, slower if share else backward, budget=seconds, seed=seed)
        for seed in range(runs)
    ]
    outside = sum(not one.ratio.low <= 1 <= one.ratio.high for one in found)
    ratio = float(np.median([one.ratio.value for one in found]))
    return ratio, [one.verdict for one in found], outside


def calibrated(step: Step, share: float, seconds: float) -> int:
    """How many passes of an empty loop take `share` of the step."""
    passes = 10_000

    def loop() -> None:
        for _ in repeat(None, passes):
            pass

    step()
    found = compare(loop, step, budget=seconds)
    click.echo(f"backward 512x1024: {found.b.median * 1e6:.0f} us")
    return round(share * found.ratio.value * passes)


def report(name: str, rows: np.ndarray) -> None:
    """One line: spread in per cent of the log-ratio, and coverage of the truth."""
    log_ratio, low, high = rows.T
    off = np.abs(log_ratio) * 100
    covers = f"{np.mean((low <= 0) & (high >= 0)):8.0%}" if np.isfinite(low[0]) else ""
    width = f"{np.median(high - low) * 100:7.2f} %" if np.isfinite(low[0]) else ""
    click.echo(
        f"{name:37} {np.std(log_ratio, ddof=1) * 100:7.2f} % {np.max(off):7.2f} % "
        f"{np.mean(off <= 0.3):10.0%} {width:>9} {covers}"
    )


@click.command(help=__doc__)
@click.option("--repeats", default=40, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="of one comparison")
@click.option("--planted-runs", default=20, show_default=True)
@click.option("--planted-seconds", default=5.0, show_default=True)
@click.option("--neighbour/--no-neighbour", default=True, show_default=True)
def main(
    repeats: int,
    seconds: float,
    planted_runs: int,
    planted_seconds: float,
    neighbour: bool,
) -> None:
    """Measure, and print two tables."""
    pinned = pin_malloc()
    import torch

    torch.set_num_threads(1)
    click.echo(f"torch {torch.__version__}, Python {platform.python_version()}")
    click.echo(f"one thread of {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    click.echo(f"allocator {'pinned' if pinned else 'NOT pinned'}")
    click.echo(f"another process loads {'one core' if neighbour else 'nothing'}")
    with busy_neighbour() if neighbour else nullcontext():
        click.echo(f"\n{repeats} repeats of {seconds:g} s, layer_norm 256x1024")
        click.echo(f"{'':41} sd       max  within .3%  interval  covers 1")
        for name, rows in against_itself(repeats, seconds).items():
            report(name, rows)
        click.echo(f"\n{planted_runs} runs of {planted_seconds:g} s each")
        for share in (0.02, 0.0):
            ratio, verdicts, outside = planted(planted_runs, planted_seconds, share)
            counts = {verdict: verdicts.count(verdict) for verdict in set(verdicts)}
            click.echo(f"planted {share:.0%}: median ratio {ratio:.4f}, {counts}")
            click.echo(
                f"    {outside} intervals exclude 1, load {os.getloadavg()[0]:.1f}"
            )


if __name__ == "__main__":
    main()
