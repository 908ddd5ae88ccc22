"""A first example: the same gradient, computed by every backend.

    python -m scripts.tour

Runs exp2 at x = [1, 2, 3] with a cotangent of ones, in float32, on all backends.
"""

from __future__ import annotations

import numpy as np
from rich.table import Table

from harness.console.terminal import output
from harness.judging.entry import judge
from harness.project.requested import by_default
from harness.project.verdicts import SIGNS
from harness.workers.messages import Outcome, Task
from harness.workers.pool import sweep
from impls.catalogue import load_op
from impls.contract import Problem

X = np.array([1, 2, 3], dtype=np.float32)
DY = np.ones_like(X)


def exp2_everywhere() -> list[Outcome]:
    """The outcome of the example on each backend, by the backend's name."""
    problem = Problem(load_op("exp2"), {"x": X}, [DY], dtype="float32")
    tasks = [Task(name, "exp2", name, problem) for name in by_default()]
    return sorted(sweep(tasks, jobs=2), key=lambda outcome: outcome.task.backend)


def row(outcome: Outcome) -> tuple[str, str, str]:
    """Backend, gradient and verdict, or the reason why there is none."""
    if outcome.result is None:
        return outcome.task.backend, "", f"{outcome.kind}: {outcome.message}"
    dx = outcome.result.gradients["dx"]
    (j,) = judge("exp2", [X], DY, [dx])
    sign, colour = SIGNS[j.verdict]
    shown = "" if dx is None else "  ".join(f"{value:.4f}" for value in dx)
    verdict = f"[{colour}]{sign} {j.verdict}[/], {j.ratio:.2f} rounding radii"
    return outcome.task.backend, shown, verdict


def main() -> None:
    """Print the table."""
    table = Table(
        title="exp2 at x = [1, 2, 3], dy = 1: dx = dy · 2^x · ln 2",
        title_justify="left",
    )
    for heading in ("backend", "dx", "verdict"):
        table.add_column(heading)
    for outcome in exp2_everywhere():
        table.add_row(*row(outcome))
    output().print(table)


if __name__ == "__main__":
    main()
