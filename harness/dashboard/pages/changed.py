"""Finds the verdicts that differ between two commits on the same machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from gradwatch.harness.dashboard.machine import MachineResults, gathered
from gradwatch.harness.dashboard.matrix import Cell, Cells, matrix
from gradwatch.harness.dashboard.sources import Source


@dataclass(frozen=True)
class Changed:
    """A cell with another verdict than before."""

    before: Cell
    after: Cell


def base_of(
    here: MachineResults, among: Collection[str] | None = None
) -> Source | None:
    """The newest `agree` document of a commit before the newest one.

    A first look and a whole run are not compared. `among` restricts the
    choice to these commits, such as releases.
    """
    head = here.newest("agree")
    for source in here.sources:
        if source.kind != "agree" or head is None or source.commit == head.commit:
            continue
        if source.summary.first_case != head.summary.first_case:
            continue
        if among is None or source.commit in among:
            return source
    return None


def changed(now: Cells, base: Source) -> tuple[Changed, ...]:
    """Cells whose verdict or number of unexpected tensors differs from the base."""
    then = matrix(gathered(base.machine, [base], []))
    pairs = (
        Changed(then[op][runner], cell)
        for op, row in now.items()
        for runner, cell in row.items()
        if op in then and runner in then[op]
    )
    return tuple(
        pair
        for pair in pairs
        if pair.before.verdict not in ("none", "missing")
        and (pair.before.verdict, pair.before.unexpected)
        != (pair.after.verdict, pair.after.unexpected)
    )
