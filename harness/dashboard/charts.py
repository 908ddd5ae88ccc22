"""Charts of the pages: Bokeh's figures as JSON, with the points of each.

Bokeh takes a tenth of a second for a figure, so one of each kind is made and filled for
each chart. The page's script (static/charts.js) embeds them, gives them the colours of
the page, and hides backends: Bokeh's own legend cannot be reached with the keyboard.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bokeh import models
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.plotting import figure
from numpy.typing import NDArray

from gradwatch.harness.dashboard.matrix import (
    BAD,
    GOOD,
    Place,
    Source,
    Style,
    runner_of,
)
from gradwatch.harness.history import asv_results
from gradwatch.harness.history.asv_results import GRADIENT, past_limit, step_to_wrong
from gradwatch.harness.history.changepoints import find_changes
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.git import Commit
from gradwatch.harness.project.records import TimeRecord

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
        rank = (not move.wrong, move.change.state != "confirmed", not move.change.worse)
        return (*rank, -abs(move.change.relative_change))

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


Chart = dict[str, Any]
Looks = Mapping[str, Style]

TICKS = 26  # names beside each other on an axis


class Point(NamedTuple):
    """A point of a chart; `low` and `high` are the ends of its interval, or its value.

    `commit` is the beginning of a commit's hash; a click opens its row.
    """

    runner: str
    x: float
    y: float
    what: str
    detail: str
    low: float
    high: float
    commit: str = ""


@functools.cache
def _frame(kind: str) -> tuple[Any, dict[str, models.ColumnDataSource]]:
    """The figure of a kind of chart, times or history, and its sources, still empty.

    The y axis is logarithmic; lines join points, and rings mark some of them.
    """
    kinds: dict[str, dict[str, Any]] = {
        "times": {"x_axis_label": "bytes moved, at least", "x_axis_type": "log"},
        "history": {"x_axis_label": "commit, oldest first"},
    }
    plot: Any = figure(
        height=300 if kind == "times" else 380,
        sizing_mode="stretch_width",
        toolbar_location="above",
        tools="pan,box_zoom,wheel_zoom,reset",
        active_scroll=None,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
        x_range=models.DataRange1d(),
        y_axis_type="log",
        **kinds[kind],
    )
    plot.toolbar.logo = None
    # More ticks would overlap.
    plot.yaxis.ticker = models.LogTicker(desired_num_ticks=5)
    plot.yaxis.formatter = models.BasicTickFormatter(power_limit_high=6)
    names = ("lines", "points", "rings")
    sources = {name: models.ColumnDataSource({}, name=name) for name in names}

    def draw(name: str, glyph: str, **options: Any) -> Any:
        # The page's script filters it.
        view = models.CDSView(filter=models.BooleanFilter())
        options |= {"source": sources[name], "view": view}
        return getattr(plot, glyph)(color={"field": "colour"}, **options)

    draw("lines", "multi_line", xs="xs", ys="ys", line_dash="dash")
    draw("points", "segment", x0="x", y0="low", x1="x", y1="high")
    marker = {"field": "marker"}
    dots = draw("points", "scatter", x="x", y="y", marker=marker, size="size")
    ring = {"size": 16, "fill_alpha": 0, "line_width": 2.5}
    draw("rings", "scatter", x="x", y="y", **ring)
    lines = [("", "@runner"), ("", "@what"), ("", "@detail")]
    plot.add_tools(models.HoverTool(tooltips=lines, renderers=[dots]))
    if kind == "times":
        plot.xaxis.ticker = models.LogTicker(desired_num_ticks=5)
        plot.xaxis.formatter = models.NumeralTickFormatter(format="0 d")
        plot.yaxis.axis_label = "µs"
    else:
        page = models.OpenURL(url="../changes.html#c-@commit", same_tab=True)
        plot.add_tools(models.TapTool(callback=page))
    return plot, sources


def _filled(
    kind: str,
    points: Sequence[Point],
    looks: Looks,
    *,
    size: int = 6,
    rings: Sequence[tuple[Point, str]] = (),
) -> Chart:
    """The figure with these contents, as `Bokeh.embed.embed_item` takes it.

    Lines join the points of each runner; `rings` are points with the colour of a ring.
    """
    plot, sources = _frame(kind)
    # A factor of 2 at least, or noise fills the axis.
    heights = [end for p in points for end in (p.y, p.low, p.high) if end]
    low, high = min(heights, default=1.0), max(heights, default=10.0)
    margin = 1.6 if high < 2 * low else (high / low) ** 0.06
    plot.y_range = models.Range1d(start=low / margin, end=high * margin)
    sources["points"].data = {
        **_columns(" ".join(Point._fields), points),
        "colour": [looks[p.runner].colour for p in points],
        "marker": [looks[p.runner].marker for p in points],
        "size": [size] * len(points),
    }
    lines = list[tuple[Any, ...]]()
    for name in dict.fromkeys(p.runner for p in points):
        own, look = [p for p in points if p.runner == name], looks[name]
        places = [p.x for p in own], [p.y for p in own]
        lines.append((name, look.colour, look.dash, *places))
    sources["lines"].data = _columns("runner colour dash xs ys", lines)
    ringed = [(p.runner, p.x, p.y, colour) for p, colour in rings]
    sources["rings"].data = _columns("runner x y colour", ringed)
    return dict(json_item(plot, ID("chart")))


def _columns(names: str, rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    """Rows as the columns of a source; without rows, all columns are empty."""
    several = [*rows]
    return {name: [row[i] for row in several] for i, name in enumerate(names.split())}


# Contents -----------------------------------------------------------------------


def times(
    timed: Mapping[str, Sequence[TimeRecord]], dtype: str, phase: str, looks: Looks
) -> Chart | None:
    """The chart of microseconds against bytes moved.

    `timed` are records of one op by runner; None if none is of this dtype and phase.
    """
    points = []
    for runner, records in timed.items():
        for r in sorted(records, key=lambda r: r.bytes or 0):
            if (r.dtype, r.phase) == (dtype, phase) and r.bytes:
                y, low, high = (1e6 * seconds for seconds in (r.seconds, r.low, r.high))
                detail = f"{clock(r.seconds)} ({clock(r.low)} to {clock(r.high)})"
                points.append(Point(runner, r.bytes, y, r.case, detail, low, high))
    return _filled("times", points, looks) if points else None


def history(
    several: Sequence[Series], commits: Sequence[Commit], looks: Looks
) -> Chart:
    """The chart of series with one unit over commits, with a ring at each change.

    A ratio can be 0, which has no place on a logarithmic axis: it is drawn below.
    """
    unit = several[0].unit
    scale, label = (1e6, "µs") if unit == "seconds" else (1.0, unit)
    values = np.concatenate([one.values for one in several])
    zero = min(values[values > 0], default=2.0) / 2
    points, rings = [], []
    for one in several:
        changed = {c.index: BAD if c.worse else GOOD for c in one.changes}
        for place in map(int, np.flatnonzero(np.isfinite(one.values))):
            exact, commit = one.values[place], commits[place]
            ends = (exact, one.low[place], one.high[place])
            # With four digits: more would be noise and double the size of a file.
            figures = (f"{scale * (zero if v <= 0 else v):.4g}" for v in ends)
            y, low, high = map(float, figures)
            low, high = (y if math.isnan(end) else end for end in (low, high))
            detail = clock(exact) if unit == "seconds" else f"{exact:.3g} {unit}"
            name = commit.hash[:12]
            what = f"{name} {commit.subject}"
            points.append(Point(one.line, place, y, what, detail, low, high, name))
            if place in changed:
                rings.append((points[-1], changed[place]))
    plot, _ = _frame("history")
    step = -(-len(commits) // TICKS)
    named = range((len(commits) - 1) % step, len(commits), step)
    shown = {i: f"{commits[i].hash[:7]} {commits[i].date[5:10]}" for i in named}
    plot.xaxis.ticker = models.FixedTicker(ticks=list(shown))
    plot.xaxis.major_label_overrides = shown
    plot.xaxis.major_label_orientation = math.pi / 4
    plot.yaxis.axis_label = label
    return _filled("history", points, looks, size=4, rings=rings)


def clock(seconds: float | None) -> str:
    """A time with three digits and a suitable unit: 12.3 µs."""
    if seconds is None:
        return ""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
