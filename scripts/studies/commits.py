"""Measures how accurate a comparison of two commits is: one commit with itself.

    python scripts/studies/commits.py --repeats 40

Compares two worktrees of HEAD, with as many pairs of fresh processes as `gradwatch
compare` uses by default, or `--pairs`. Each comparison is followed by
torch.utils.benchmark's `blocked_autorange` in one fresh process of each worktree, in
the same repeat and with the same sampling time. Nothing is asserted: a person reads the
figures.
"""

import os
import subprocess
import sys
from pathlib import Path

import click
import numpy as np

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project.git import checked_out
from gradwatch.harness.timing.compare import (
    PAIRS,
    SAMPLED,
    WITHIN,
    Plan,
    Side,
    compare_sides,
)
from gradwatch.impls.catalogue import load_op

BLOCKED = """
import sys
import torch
from torch.utils.benchmark import Timer
torch.set_num_threads(1)
x, weight, bias = (
    torch.randn(shape, requires_grad=True) for shape in ((256, 1024), 1024, 1024)
)
y = torch.nn.functional.layer_norm(x, (1024,), weight, bias)
dy = torch.randn_like(y)
step = lambda: torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)
timer = Timer("step()", globals={"step": step})
print(timer.blocked_autorange(min_run_time=float(sys.argv[1])).median)
"""


def blocked_autorange(trees: tuple[Path, Path], seconds: float) -> float:
    """Ratio of two fresh processes, started in the two folders."""
    command = [sys.executable, "-c", BLOCKED, str(seconds)]
    a, b = (float(subprocess.check_output(command, cwd=tree)) for tree in trees)
    return b / a


def report(name: str, ratios: np.ndarray) -> None:
    """One line: spread in per cent of the log-ratio, and how many are near 1."""
    off = np.abs(np.log(ratios))
    click.echo(
        f"{name:18} sd {np.std(np.log(ratios), ddof=1):6.2%}  largest {off.max():6.2%}"
        f"  within {WITHIN:.0%} {np.mean(off <= np.log1p(WITHIN)):5.0%}"
    )


@click.command(help=__doc__)
@click.option("--repeats", default=40, show_default=True)
@click.option("--pairs", default=PAIRS, show_default=True)
@click.option("--budget", default=SAMPLED, show_default=True, help="seconds")
def main(repeats: int, pairs: int, budget: float) -> None:
    """Measure, and print a line for each comparison and two for all."""
    op = load_op("layer_norm")
    chosen = trial(op, op.sizes["256x1024"], REGIMES["normal"], "float32")
    rows, blocked = [], []
    with checked_out("HEAD") as one, checked_out("HEAD") as other:
        a, b = (Side("HEAD", "torch_autograd", tree) for tree in (one, other))
        for seed in range(repeats):
            plan = Plan(chosen, "backward", budget, pairs, seed=seed)
            row = compare_sides(a, b, plan)
            rows.append(row)
            blocked.append(blocked_autorange((one, other), budget / 2))
            click.echo(
                f"{row['ratio']:.4f} ({row['low']:.4f} to {row['high']:.4f}), "
                f"{row['pairs_needed']} pairs needed, {row['seconds']:.0f} s, "
                f"load {os.getloadavg()[0]:.1f}; blocked_autorange {blocked[-1]:.4f}"
            )
    covers = np.mean([row["low"] <= 1 <= row["high"] for row in rows])
    seconds = np.median([row["seconds"] for row in rows])
    report("gradwatch compare", np.array([row["ratio"] for row in rows]))
    report("blocked_autorange", np.array(blocked))
    click.echo(f"{pairs} pairs, {seconds:.0f} s each; {covers:.0%} cover 1")


if __name__ == "__main__":
    main()
