"""Values over commits, aligned with one list of commits, and their changes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.dashboard.machine import Place, Source, runner_of
from gradwatch.harness.history import asv_results
from gradwatch.harness.history.asv_results import GRADIENT, past_limit, step_to_wrong
from gradwatch.harness.history.changepoints import find_changes
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.git import Commit

Values = NDArray[np.float64]

# Readable names of metrics; in any other name the underscores become blanks.
METRICS = {
    "time_forward": "forward pass",
    "time_backward": "backward pass",
    "track_gradient_ratio": "worst ratio of a gradient",
    "track_first_call": "first call",
    "track_peak_memory": "peak memory",
}


@dataclass(frozen=True)
class LevelChange:
    """A change of level, at the commit of an index; `state` is that of the watch.

    `relative_change` has a 95 % interval from `low` to `high`.
    """

    index: int
    kind: str
    relative_change: float
    low: float
    high: float
    worse: bool
    state: str


@dataclass(frozen=True, eq=False)
class Series:
    """One value for each commit, or NaN; `low` and `high` are its 95 % interval.

    `line` is the runner, with the environment's versions if it runs in several.
    `view` is the same for all series of one chart: metric, size, dtype and suite.
    `past` are the commits at which a gradient is wrong that was right before; empty for
    other metrics.
    """

    op: str
    runner: str
    line: str
    metric: str
    unit: str
    view: str
    values: Values
    low: Values
    high: Values
    changes: tuple[LevelChange, ...]
    past: frozenset[int] = frozenset()

    @property
    def is_time(self) -> bool:
        """Whether it is the time of a pass."""
        return self.metric.endswith(" pass")


@dataclass(frozen=True)
class History:
    """All series of one machine, and their commits, oldest first."""

    commits: tuple[Commit, ...] = ()
    series: tuple[Series, ...] = ()


class Move(NamedTuple):
    """A change of level of a series, and the first commit after it."""

    series: Series
    change: LevelChange
    commit: Commit

    @property
    def wrong(self) -> bool:
        """Whether a gradient became wrong."""
        return self.change.worse and self.change.index in self.series.past


def moves(history: History) -> list[Move]:
    """All changes of level, the worst first."""

    def urgency(move: Move) -> tuple[Any, ...]:
        change = move.change
        rank = (not move.wrong, change.state != "confirmed", not change.worse)
        return (*rank, -abs(change.relative_change))

    moved = (
        Move(series, change, history.commits[change.index])
        for series in history.series
        for change in series.changes
    )
    return sorted(moved, key=urgency)


# Commits ------------------------------------------------------------------------


class CommitRow(NamedTuple):
    """A measured commit; `place` is its index.

    `wrong` are the ops and lines whose gradient is wrong there, newly wrong ones first;
    `judged` says whether any gradient was judged.
    """

    place: int
    commit: Commit
    judged: bool
    wrong: list[Place]
    moves: list[Move]


def commit_rows(history: History) -> list[CommitRow]:
    """The rows of all commits: those with changes, worse first; then the newest."""
    moved, rows = defaultdict[int, list[Move]](list), list[CommitRow]()
    for move in sorted(moves(history), key=lambda move: not move.change.worse):
        moved[move.change.index].append(move)
    gradients = [one for one in history.series if one.metric == METRICS[GRADIENT]]
    for place in dict.fromkeys([*moved, *reversed(range(len(history.commits)))]):
        became = [(m.series.op, m.series.line) for m in moved[place] if m.wrong]
        wrong = [(one.op, one.line) for one in gradients if place in one.past]
        judged = any(not math.isnan(one.values[place]) for one in gradients)
        wrong = [*dict.fromkeys(became + wrong)]  # once for all precisions
        commit = history.commits[place]
        rows.append(CommitRow(place, commit, judged, wrong, moved[place]))
    return rows


def wrong_since(history: History) -> dict[Place, Commit]:
    """The first wrong commit of each op and backend that is wrong in the history."""
    found: dict[Place, int] = {}
    for one in history.series:
        present = np.flatnonzero(~np.isnan(one.values)).tolist()
        right = [i for i in present if i not in one.past]
        for at in [i for i in present if right and i > right[-1]][:1]:
            place = one.op, one.runner
            found[place] = min(at, found.get(place, at))
    return {place: history.commits[at] for place, at in found.items()}


# Reading ------------------------------------------------------------------------


def read_histories(
    folder: Path, known: Mapping[str, Commit], watched: Source | None = None
) -> tuple[dict[str, History], list[Unreadable]]:
    """The history of each machine in asv's results folder, and the unreadable files.

    Changes have the states of the newest document of `gradwatch watch`; without one,
    every change that is found is suspected.
    """
    unreadable = list[Unreadable]()
    by_machine: dict[str, list[asv_results.Series]] = defaultdict(list)
    try:
        for series in asv_results.read(folder, list(known), unreadable):
            by_machine[series.machine].append(series)
    except Unreadable as error:
        unreadable = [error]
    rank, histories = {name: i for i, name in enumerate(known)}, dict[str, History]()
    for machine, several in by_machine.items():
        dates = {e.commit: e.date.isoformat() for one in several for e in one.entries}
        names = sorted(dates, key=lambda name: (rank.get(name, -1), dates[name]))
        places = {name: i for i, name in enumerate(names)}
        pairs = {(_runner(one), one.environment) for one in several}
        seen = Counter(runner for runner, _ in pairs)
        histories[machine] = History(
            tuple(known.get(name, Commit(name, dates[name])) for name in names),
            tuple(_aligned(s, seen[_runner(s)] > 1, places, watched) for s in several),
        )
    return histories, [one.below(folder.parent) for one in unreadable]


def _runner(series: asv_results.Series) -> str:
    given = series.parameters
    return runner_of(given.get("backend", "unnamed"), given.get("device", "cpu"))


def _aligned(
    series: asv_results.Series,
    versions: bool,
    places: Mapping[str, int],
    watched: Source | None,
) -> Series:
    """A series aligned with the list of commits; `places` has the index of each.

    Its line has the `versions` of its environment, where the runner has several.
    """
    line = _runner(series)
    if versions:
        named = (f"{k} {v}" for k, v in sorted(series.versions.items()))
        line += f" ({', '.join(named)})"
    values, low, high = np.full((3, len(places)), np.nan)
    at = [places[entry.commit] for entry in series.entries]
    given = [(entry.value, entry.low, entry.high) for entry in series.entries]
    values[at], low[at], high[at] = np.array(given, np.float64).T  # None is NaN
    parts = (series.parameters.get(name, "") for name in ("size", "dtype"))
    metric = METRICS.get(series.metric, series.metric.replace("_", " "))
    suite = f"{series.benchmark.split('.')[0].removeprefix('bench_')} set"
    view = ", ".join(filter(None, (metric, *parts, suite)))
    known = np.flatnonzero(~np.isnan(values))
    if watched is None:
        found = find_changes(values[known])
        changes = [_change(one, int(known[one.index]), "suspected") for one in found]
    else:
        own = (series.machine, series.environment, series.name)
        changes = [
            _change(alert, places[alert.commit], alert.state)
            for alert in watched.records
            if (alert.machine, alert.environment, alert.series) == own
            and alert.state != "cleared"
            and alert.commit in places
        ]
    past = frozenset[int]()
    if series.metric == GRADIENT:
        about = (series.op, series.parameters.get("dtype", ""), values[known])
        past = frozenset(known[past_limit(*about)].tolist())
        if wrong := step_to_wrong(*about):  # a verdict, without any document of watch
            verdict = _change(wrong, int(known[wrong.index]), "confirmed")
            near = [c for c in changes if abs(c.index - verdict.index) <= 1]
            if all(change.state == "suspected" for change in near):
                changes = [*(c for c in changes if c not in near), verdict]
    return Series(
        *(series.op, _runner(series), line, metric, series.unit, view),
        *(values, low, high, tuple(changes), past),
    )


def _change(found: Any, index: int, state: str) -> LevelChange:
    """A change that was found or recorded; null in a document is infinite."""
    ends = (found.relative_change, found.low, found.high)
    change, low, high = (math.inf if end is None else end for end in ends)
    return LevelChange(index, found.kind, change, low, high, found.worse, state)
