"""Finds the verdicts that differ between two commits on the same machine."""

from __future__ import annotations

from collections.abc import Collection

from gradwatch.harness.dashboard.machine import MachineResults, gathered
from gradwatch.harness.dashboard.matrix import Cell, Cells, matrix
from gradwatch.harness.dashboard.sources import Source


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


def changed(now: Cells, base: Source) -> list[tuple[Cell, Cell]]:
    """Cells whose verdict or number of unexpected tensors changed, before and after."""
    then = matrix(gathered(base.machine, [base], []))
    return [
        (before, after)
        for op, row in now.items()
        for runner, after in row.items()
        if (before := then.get(op, {}).get(runner)) is not None
        and before.verdict not in ("none", "missing")
        and (before.verdict, before.unexpected) != (after.verdict, after.unexpected)
    ]
