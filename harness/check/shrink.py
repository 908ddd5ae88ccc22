"""The smallest input at which a candidate still fails."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Function, examined
from gradwatch.harness.check.frameworks import Elsewhere
from gradwatch.harness.check.frameworks.runs import Tensor, floating
from gradwatch.harness.check.report import Row
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.project.descent import Cut, cuts, descend

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
    leaves = [v for v in tree_leaves(trial.args) if isinstance(v, Tensor)]
    for cut in cuts(t.shape for t in leaves):
        cut_args = tree_map(lambda v, c=cut: _cut(v, c), trial.args)
        yield replace(trial, args=cut_args)


def _cut(value: Any, cut: Cut) -> Any:
    if not isinstance(value, Tensor):
        return value
    part = value.detach()[cut(value.shape)]
    return part.clone().requires_grad_(value.requires_grad)


def _plainer(trial: Trial) -> Iterator[Trial]:
    """A cotangent of ones; each input in turn all ones, or of one or two digits."""
    if trial.regime.cotangent != "ones":
        yield replace(trial, regime=REGIMES["dy_ones"])
    leaves = tree_leaves(trial.args)
    for place, value in enumerate(leaves):
        if floating(value) and not value.is_complex():
            for plainer in (
                torch.ones_like(value),
                _digits(value, 1),
                _digits(value, 2),
            ):
                if not torch.equal(plainer, value.detach()):
                    yield replace(trial, args=_with(trial.args, place, plainer))


def _digits(value: Tensor, count: int) -> Tensor:
    """To so many significant digits."""
    exponent = value.detach().abs().clamp_min(1e-30).log10().floor()
    unit = 10.0 ** (exponent.double() - count + 1)
    return ((value.detach().double() / unit).round() * unit).to(value.dtype)


def _with(args: Any, place: int, value: Tensor) -> Any:
    counter = iter(range(len(tree_leaves(args))))
    return tree_map(
        lambda old: (
            value.requires_grad_(old.requires_grad) if next(counter) == place else old
        ),
        args,
    )
