"""Values over commits, aligned with one list of commits; what changed, and at which."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.dashboard.machine import Place, Source, runner_of
from gradwatch.harness.history import asv_results
from gradwatch.harness.history.asv_results import GRADIENT, past_limit, step_to_wrong
from gradwatch.harness.history.changepoints import find_changes
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.git import Commit

Values = NDArray[np.float64]

#: The share by which a time must have changed to be called slower or faster.
LEAST = 0.03

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
    """A change of level, at the commit of an index; `state` is the watch's word on it.

    `relative_change` has a 95 % interval from `low` to `high`.
    """

    index: int
    kind: str
    relative_change: float
    low: float
    high: float
    worse: bool
    state: str

    @property
    def clear(self) -> bool:
        """Whether it is confirmed, or its whole interval is past the least effect."""
        nearest = min(abs(self.low), abs(self.high)) if self.low * self.high > 0 else 0
        return self.state == "confirmed" or nearest > LEAST


@dataclass(frozen=True, eq=False)
class Series:
    """One value for each commit, or NaN; `low` and `high` are its 95 % interval.

    `line` is the runner, with the environment's versions if it runs in several.
    `view` is the same for all series of one chart: metric, size, dtype and suite.
    `past` says at which commits a gradient is wrong that was right before; it is empty
    of other metrics.
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

    @property
    def present(self) -> list[int]:
        """The indices of the commits with a value."""
        return [int(i) for i in np.flatnonzero(~np.isnan(self.values))]

    @property
    def wrong_since(self) -> int | None:
        """The commit since which the gradient is wrong, if the newest has it wrong."""
        right = [i for i in self.present if i not in self.past]
        wrong = [i for i in self.present if not right or i > right[-1]]
        return wrong[0] if wrong and right else None


@dataclass(frozen=True)
class History:
    """All series of one machine, and their commits, oldest first."""

    commits: tuple[Commit, ...] = ()
    series: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Move:
    """A change of level of a series, and the first commit after it."""

    series: Series
    change: LevelChange
    commit: Commit

    @property
    def wrong(self) -> bool:
        """Whether a gradient became wrong."""
        return self.change.worse and self.change.index in self.series.past

    @property
    def urgency(self) -> tuple[Any, ...]:
        """Sorts moves, the worst first."""
        change = self.change
        rank = (not self.wrong, change.state != "confirmed", not change.worse)
        return (*rank, -abs(change.relative_change))


def moves(history: History) -> tuple[Move, ...]:
    """All changes of level, the worst first: two single values always differ."""
    moved = [
        Move(series, change, history.commits[change.index])
        for series in history.series
        for change in series.changes
    ]
    return tuple(sorted(moved, key=lambda move: move.urgency))


# Commits ------------------------------------------------------------------------


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


# Reading ------------------------------------------------------------------------


def read_histories(
    folder: Path, known: Mapping[str, Commit], watched: Source | None = None
) -> tuple[dict[str, History], list[Unreadable]]:
    """The history of each machine in asv's results folder, and the unreadable files.

    What the newest document of `gradwatch watch` confirmed or cleared is shown as it
    says; without one, every change that is found is suspected.
    """
    unreadable = list[Unreadable]()
    by_machine: dict[str, list[asv_results.Series]] = defaultdict(list)
    try:
        for series in asv_results.read(folder, list(known), unreadable):
            by_machine[series.machine].append(series)
    except Unreadable as error:
        unreadable = [error]
    histories = {m: _history(s, known, watched) for m, s in by_machine.items()}
    return histories, [one.below(folder.parent) for one in unreadable]


def _history(
    several: Sequence[asv_results.Series],
    known: Mapping[str, Commit],
    watched: Source | None,
) -> History:
    """The series of a machine, aligned with one list of all their commits."""
    dates = {e.commit: e.date.isoformat() for one in several for e in one.entries}
    rank = {name: i for i, name in enumerate(known)}
    names = sorted(dates, key=lambda name: (rank.get(name, -1), dates[name]))
    commits = tuple(known.get(name, Commit(name, dates[name])) for name in names)
    places = {name: i for i, name in enumerate(names)}
    seen = Counter(pair[0] for pair in {(_runner(s), s.environment) for s in several})
    aligned = (_aligned(s, seen[_runner(s)] > 1, places, watched) for s in several)
    return History(commits, tuple(aligned))


def _runner(series: asv_results.Series) -> str:
    given = series.parameters
    return runner_of(given.get("backend", "unnamed"), given.get("device", "cpu"))


def _aligned(
    series: asv_results.Series,
    versions: bool,
    places: Mapping[str, int],
    watched: Source | None,
) -> Series:
    """The series on the list of commits; `places` has the index of each.

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
    suite = f"{series.suite.removeprefix('bench_')} set"
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
    """The change that was found or reported; null in a document is infinite."""
    ends = (found.relative_change, found.low, found.high)
    change, low, high = (math.inf if end is None else end for end in ends)
    return LevelChange(index, found.kind, change, low, high, found.worse, state)
