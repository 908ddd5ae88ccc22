"""What changed: each commit with what became wrong, slower and faster at it."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from gradwatch.harness.dashboard.machine import Place
from gradwatch.harness.dashboard.series import History, Move, moves
from gradwatch.harness.project.git import Commit


@dataclass
class CommitRow:
    """A measured commit; `place` is its index.

    `wrong` are the ops and backends whose gradient is wrong at it, `became` those that
    were right before. `mean` is the geometric mean of all times over those before.
    """

    place: int
    commit: Commit
    gradients: int = 0
    wrong: list[Place] = field(default_factory=list)
    became: list[Place] = field(default_factory=list)
    slower: list[Move] = field(default_factory=list)
    faster: list[Move] = field(default_factory=list)
    mean: float | None = None

    @property
    def urgency(self) -> tuple[Any, ...]:
        """Sorts rows: the worst first, and of equals the newest."""
        sure = [move for move in self.slower if move.change.state == "confirmed"]
        counts = (self.became, self.wrong, sure, self.slower)
        return (*(-len(some) for some in counts), -self.place)


def commit_rows(history: History) -> list[CommitRow]:
    """The rows of all commits, the newest first."""
    rows = [CommitRow(i, commit) for i, commit in enumerate(history.commits)]
    logs: dict[int, list[float]] = defaultdict(list)
    for series in history.series:
        place, present = (series.op, series.line), series.present
        for last, at in zip([None, *present], present, strict=False):
            row = rows[at]
            if series.metric.startswith("worst"):
                row.gradients += 1
                if at in series.past:  # once, in however many precisions
                    row.wrong += [place] if place not in row.wrong else []
                    if last not in series.past and place not in row.became:
                        row.became.append(place)
            elif series.is_time and last == at - 1:
                logs[at] += _growth(*map(float, series.values[[last, at]]))
    for move in moves(history):
        if move.series.is_time:
            row = rows[move.change.index]
            (row.slower if move.change.worse else row.faster).append(move)
    for at, several in logs.items():
        rows[at].mean = math.exp(min(fmean(several), 700))
    return rows[::-1]


def _growth(before: float, after: float) -> list[float]:
    """The logarithm of what a time has grown by; none of what is no time."""
    fine = min(before, after) > 0 and max(before, after) < math.inf
    return [math.log(after) - math.log(before)] if fine else []


def wrong_since(history: History) -> dict[Place, Commit]:
    """Of each op and backend that is wrong in the history, the first wrong commit."""
    found: dict[Place, int] = {}
    for series in history.series:
        at = series.wrong_since
        if at is not None:
            place = series.op, series.runner
            found[place] = min(at, found.get(place, at))
    return {place: history.commits[at] for place, at in found.items()}
