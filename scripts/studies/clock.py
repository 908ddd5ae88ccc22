"""Measures how accurate the clock is; each command ends with one line of verdict.

    python -m scripts.studies.clock aa
    python -m scripts.studies.clock planted

Together they take about nine minutes, on one thread; the machine should be quiet.

- `aa`: forward and backward of PyTorch's layer_norm, each compared with itself 40 times
  for 2 to 8 s, as `gradwatch compare` does, while another process, started here, copies
  memory on one core all the time.
  The verdict is yes if 95 % of the ratios of each phase are within 0.3 % of 1.
- `planted`: the backward against itself with 2 % more work, 20 times for 5 s, beside
  the same process. Yes if 19 are called slower, and of 20 without it, at most one.

The timed calls are those of `gradwatch time`: inputs and cotangents change before each
sample, and results are kept. The exit code is 1 if the verdict is no.
"""

import itertools
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click
import numpy as np

from gradwatch.harness.judging.cases import REGIMES, Trial, trial
from gradwatch.harness.timing.proof import variants
from gradwatch.harness.timing.rotation import (
    PHASES,
    Place,
    Rotation,
    unforeseen,
    witnessed,
)
from gradwatch.harness.timing.samples import (
    Comparison,
    Run,
    interleave,
    paired,
    verdict_on,
)
from gradwatch.harness.timing.timers import HostTimer, Reading
from gradwatch.harness.workers.worker import MALLOC_ENVIRONMENT
from gradwatch.impls.catalogue import load_backend, load_op

BACKEND, OP, SIZE = "torch_autograd", "layer_norm", "256x1024"
NEAR, SHARE = 0.003, 0.95  # of an A/A comparison
Call = Callable[[], object]
PLANTED, SEEN = 0.02, 0.95  # 19 of 20

NEIGHBOUR = """
import os, sys
import numpy as np
here, there = np.ones((2, 8 << 20), np.uint8)
while os.getppid() == int(sys.argv[1]):
    np.copyto(there, here)
"""


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Run another process that loads one core and the memory until the block ends."""
    command = [sys.executable, "-c", NEIGHBOUR, str(os.getpid())]
    neighbour = subprocess.Popen(command)
    try:
        yield
    finally:
        neighbour.kill()
        neighbour.wait()


def drawn(op: str, size: str = "") -> Trial:
    """A size of an op, the middle one by default, in float32."""
    page = load_op(op)
    name = size or list(page.sizes)[len(page.sizes) // 2]
    return trial(page, page.sizes[name], REGIMES["normal"], "float32")


def rotation_of(chosen: Trial) -> Rotation:
    """The steps of a worker, whose numbers change between samples."""
    sources = [one.problem for one in variants(chosen)]
    places = [Place(sources), Place(sources)]
    return Rotation(load_backend(BACKEND), places, sources, unforeseen())


def compared(a: Run, b: Run, seconds: float, seed: int = 0) -> Comparison:
    """The samples of two runs in turn, by the clock of a worker."""
    both = interleave({"a": a, "b": b}, budget=seconds, seed=seed)
    return paired(both["a"], both["b"])


# A run with itself ----------------------------------------------------------------


def against_itself(repeats: int, seconds: float) -> dict[str, np.ndarray]:
    """The log-ratio and the ends of its interval, a row per repeat, by phase."""
    one = rotation_of(drawn(OP, SIZE))
    rows: dict[str, list[list[float]]] = {phase: [] for phase in PHASES}
    for seed in range(repeats):
        for phase in PHASES:
            run = partial(witnessed, one, phase, HostTimer())
            ratio = compared(run, run, seconds, seed).ratio
            rows[phase].append([ratio.value, ratio.low, ratio.high])
    return {phase: np.log(ratios) for phase, ratios in rows.items()}


def spread(name: str, rows: np.ndarray) -> str:
    """A line with the spread of the log-ratios in per cent and the coverage of 1."""
    log_ratio, low, high = rows.T
    off = np.abs(log_ratio) * 100
    covers = np.mean((low <= 0) & (high >= 0))
    width = np.median(high - low) * 100
    return (
        f"{name:9} {np.std(log_ratio) * 100:7.2f} % {np.max(off):7.2f} % "
        f"{np.mean(off <= 100 * NEAR):10.0%} {width:7.2f} % {covers:8.0%}"
    )


# Planted slowdowns ----------------------------------------------------------------


class Slower(HostTimer):
    """A timer of calls with so many passes of an empty loop after each."""

    loops = 0

    def __call__(self, run: Call, calls: int, wait: Call = int) -> Reading:
        def longer() -> None:
            run()
            for _ in itertools.repeat(None, Slower.loops):
                pass

        return super().__call__(longer, calls, wait)


def planted(runs: int, seconds: float, share: float) -> list[Comparison]:
    """Compare the backward with itself plus `share` more work, in empty loops."""
    one = rotation_of(drawn(OP, SIZE))
    backward = slower = partial(witnessed, one, "backward", HostTimer())
    if share:  # a loop of no passes takes .4 % of the backward
        slower = partial(witnessed, one, "backward", Slower())
        calibrate(backward, slower, share, seconds)
    return [compared(backward, slower, seconds, seed) for seed in range(runs)]


def calibrate(step: Run, slower: Run, share: float, seconds: float) -> None:
    """Set `Slower.loops` so that the passes after a step take `share` of its time.

    Passes that follow work on memory take longer than passes in a row, so a line is
    drawn through what two numbers of them cost.
    """
    cost = {}
    for Slower.loops in (500, 2_000):
        cost[Slower.loops] = compared(step, slower, seconds).ratio.value - 1
    (few, least), (many, most) = cost.items()
    Slower.loops = round(few + (share - least) * (many - few) / (most - least))


# Commands -------------------------------------------------------------------------


def verdict(right: bool, what: str) -> None:
    """Print the last line, and exit with its code."""
    click.echo(f"{'yes' if right else 'NO'}: {what}; load {os.getloadavg()[0]:.1f}")
    sys.exit(not right)


#: Each paragraph with click's mark before it, or click would rewrap its lines.
HELP = "\n\n".join(f"\b\n{paragraph}" for paragraph in (__doc__ or "").split("\n\n"))


@click.group(help=HELP)
def main() -> None:
    """Print the machine and the versions."""
    import torch

    torch.set_num_threads(1)
    click.echo(
        f"torch {torch.__version__}, Python {platform.python_version()}, one thread of "
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )


@main.command()
@click.option("--repeats", default=40, show_default=True)
@click.option(
    "--seconds", default=2.0, show_default=True, help="of one comparison, at least"
)
def aa(repeats: int, seconds: float) -> None:
    """Compare a run with itself, beside a loaded core."""
    with busy_neighbour():
        rows = against_itself(repeats, seconds)
    click.echo(f"{'':13} sd       max  within .3%  interval  covers 1")
    for name, logs in rows.items():
        click.echo(spread(name, logs))
    shares = {p: float(np.mean(np.abs(rows[p][:, 0]) <= NEAR)) for p in PHASES}
    near = ", ".join(f"{share:.0%} of {phase}s" for phase, share in shares.items())
    verdict(
        min(shares.values()) >= SHARE,
        f"{near} within {NEAR:.1%} in {repeats} comparisons with itself "
        f"beside a loaded core ({SHARE:.0%} asked for)",
    )


@main.command("planted")
@click.option("--runs", default=20, show_default=True)
@click.option("--seconds", default=5.0, show_default=True, help="of one comparison")
def planted_command(runs: int, seconds: float) -> None:
    """Measure a planted slowdown of 2 %, and none, beside a loaded core."""
    slower = {}
    with busy_neighbour():
        for share in (PLANTED, 0.0):
            results = planted(runs, seconds, share)
            slower[share] = sum(
                verdict_on(one.ratio, one.noise) == "slower" for one in results
            )
            ratio = float(np.median([one.ratio.value for one in results]))
            click.echo(f"planted {share:.0%}: median ratio {ratio:.4f}")
    verdict(
        slower[PLANTED] >= SEEN * runs and slower[0.0] <= (1 - SEEN) * runs,
        f"{slower[PLANTED]} of {runs} planted {PLANTED:.0%} are called slower, and "
        f"{slower[0.0]} of {runs} with nothing planted",
    )


if __name__ == "__main__":
    if not MALLOC_ENVIRONMENT.items() <= os.environ.items():  # which fixes the heap
        os.execve(sys.executable, sys.orig_argv, {**os.environ, **MALLOC_ENVIRONMENT})
    main()
