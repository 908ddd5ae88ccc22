"""Shows a first example, one gradient by every backend, and the installed frameworks.

    python -m scripts.tour

Runs exp2 at x = [1, 2, 3] with a cotangent of ones, in float32, on all backends.
"""

from __future__ import annotations

import numpy as np

from gradwatch.harness.commands.doctor import examine, table
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.console.terminal import output
from gradwatch.harness.diagnosis.entry import judge
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.project.requested import by_default
from gradwatch.harness.project.verdicts import SIGNS
from gradwatch.harness.workers.pool import Fleet, Outcome, Task
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem

X = np.array([1, 2, 3], dtype=np.float32)
DY = np.ones_like(X)


def exp2_everywhere() -> None:
    """Print each backend's gradient as it arrives."""
    problem = Problem(load_op("exp2"), {"x": X}, [DY], dtype="float32")
    trial = Trial("exp2", "3", "given", problem)
    tasks = [Task(trial, name) for name in by_default()]
    with Fleet(jobs=2) as fleet:
        for outcome in fleet.run(tasks):
            if outcome.kind != "missing":  # the table below has the reason
                backend, shown, verdict = row(outcome)
                output().print(f"{backend:18} {shown:26} {verdict}")


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
    """Print the verdicts as they arrive, then the installed frameworks."""
    output().print("exp2 at x = [1, 2, 3], dy = 1: dx = dy · 2^x · ln 2")
    with ticking(lambda: "looking around"):
        exp2_everywhere()
        findings = [*examine()]
    output().print(table(findings))


if __name__ == "__main__":
    main()
