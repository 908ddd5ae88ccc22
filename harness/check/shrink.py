"""The smallest input at which a candidate still fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_flatten, tree_unflatten

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Function, examined
from gradwatch.harness.check.frameworks import Elsewhere
from gradwatch.harness.check.frameworks.pytorch import (
    array_of,
    filled,
    mapped,
    tensors,
)
from gradwatch.harness.check.frameworks.runs import Tensor, floating
from gradwatch.harness.check.report import Row
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.project.descent import Cut, cuts, descend, plainer

SECONDS = 10.0  # a person waits for the script: dozens of steps of a tenth of a second


def shrunk(
    subject: Any, candidate: Function | Elsewhere | None, trial: Trial, row: Row
) -> tuple[Trial, Row]:
    """A trial with fewer elements and plainer numbers, and what fails there.

    The same tensor has to fail with the same verdict.
    """

    def failing(attempt: Trial) -> Row | None:
        try:
            rows = examined(subject, candidate, attempt)
        except Exception:  # noqa: BLE001  # the reference takes no such input
            return None
        wanted = (row.judgement.tensor, row.judgement.verdict)
        return next(
            (r for r in rows if (r.judgement.tensor, r.judgement.verdict) == wanted),
            None,
        )

    end = time.monotonic() + SECONDS
    best = trial, row
    for steps in (_shorter, _plainer):
        best = descend(best, steps, failing, end)
    return best


def _shorter(trial: Trial) -> Iterator[Trial]:
    """Shorter inputs."""
    for cut in cuts(t.shape for t in tensors(trial.args)):

        def short(value: Tensor, cut: Cut = cut) -> Tensor:
            part = value.detach()[cut(value.shape)].clone()
            return part.requires_grad_(value.requires_grad)

        yield replace(trial, args=mapped(short, trial.args))


def _plainer(trial: Trial) -> Iterator[Trial]:
    """A cotangent of ones; each input in turn all ones, or of one or two digits."""
    if trial.regime.cotangent != "ones":
        yield replace(trial, regime=REGIMES["dy_ones"])
    leaves, spec = tree_flatten(trial.args)
    for i, value in enumerate(leaves):
        for plain in plainer(array_of(value)) if floating(value) else ():
            held = filled(plain, value).requires_grad_(value.requires_grad)
            args = tree_unflatten([*leaves[:i], held, *leaves[i + 1 :]], spec)
            yield replace(trial, args=args)
