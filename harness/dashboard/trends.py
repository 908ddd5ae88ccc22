"""The picture of the history: the backward pass of some ops over the commits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter

from gradwatch.harness.dashboard.series import METRICS, History, Series
from gradwatch.harness.dashboard.styles import Style, styles
from gradwatch.harness.project.git import Commit

#: Fewer values of a line are no trend.
LEAST = 3

#: Panels; more would be too small on a page of GitHub.
SHOWN = 6

_COLUMNS, _WIDTH, _HEIGHT = 2, 8.6, 2.1  # inches: of the picture, and of a panel
_SOURCE, _LINE = 0.18, 0.19  # inches: of the source, and of a line of the legend
_NAMES = 5  # in a line of the legend
TITLE = "Time of a backward pass over the commits, in µs (a ring: the level changed)"


@dataclass(frozen=True)
class Trends:
    """Lines by op, and the commits at which they have values by index, oldest first."""

    lines: dict[str, list[Series]]
    commits: dict[int, Commit]

    @property
    def runners(self) -> list[str]:
        """The backends that have a line."""
        return sorted({s.runner for several in self.lines.values() for s in several})

    def in_words(self) -> str:
        """What the picture shows, for those who cannot see it."""
        changed = [
            f"{op} on {one.runner} {change.relative_change:+.0%} at"
            f" {self.commits[change.index].hash[:8]}"
            for op, several in self.lines.items()
            for one in several
            for change in one.changes
        ]
        listed = "; ".join(changed) or "no change of level"
        count = f"{len(self.runners)} backends, {len(self.commits)} commits"
        return f"{', '.join(self.lines)} on {count}: {listed}."

    def span(self) -> str:
        """The first and the last commit, with their dates."""
        first, *_, last = self.commits.values()
        ends = (f"{c.hash[:8]} ({c.date[:10]})" for c in (first, last))
        return f"{len(self.commits)} commits, {' to '.join(ends)}"


def trends(history: History) -> Trends | None:
    """The ops with the most values; None if no series has enough of them."""
    lines = {op: _lines(several) for op, several in history.by_op.items()}
    most = sorted(lines, key=lambda op: -sum(map(_count, lines[op])))[:SHOWN]
    shown = {op: lines[op] for op in sorted(most) if lines[op]}
    if not shown:
        return None
    values = [one.values for several in shown.values() for one in several]
    places = map(int, np.flatnonzero(np.isfinite(values).any(axis=0)))
    return Trends(shown, {place: history.commits[place] for place in places})


def _count(one: Series) -> int:
    return int(np.isfinite(one.values).sum())


def _lines(several: Sequence[Series]) -> list[Series]:
    """Of each runner the series of a backward pass that has the most values.

    A runner may have run in several environments; the others are left to the dashboard.
    """
    passes = [
        one
        for one in several
        if one.metric == METRICS["time_backward"]
        and "speed set" in one.view
        and _count(one) >= LEAST
    ]
    longest = {one.runner: one for one in sorted(passes, key=_count)}
    return [longest[runner] for runner in sorted(longest)]


def figure(shown: Trends) -> Figure:
    """A panel for each op, a line for each backend."""
    runners = shown.runners
    rows, looks = -(-len(shown.lines) // _COLUMNS), styles(runners)
    foot = _SOURCE + _LINE * -(-len(runners) // _NAMES)
    height = 0.5 + _HEIGHT * rows + foot
    above = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - foot / height))
    drawn = Figure(figsize=(_WIDTH, height), layout=above)
    panels = drawn.subplots(rows, _COLUMNS, squeeze=False, sharex=True)
    drawn.suptitle(TITLE, x=0.01, ha="left", fontsize=10)
    for axes in panels.flat[len(shown.lines) :]:
        axes.set_axis_off()
    for axes, (op, several) in zip(panels.flat, shown.lines.items(), strict=False):
        _panel(axes, op, several, shown, looks)
    known = {
        text: handle
        for axes in panels.flat
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    drawn.legend(
        [known[runner] for runner in runners],
        runners,
        loc="lower center",
        bbox_to_anchor=(0.5, _SOURCE / height),
        ncols=_NAMES,
        frameon=False,
        fontsize=8,
    )
    return drawn


def _panel(
    axes: Axes,
    op: str,
    several: Sequence[Series],
    shown: Trends,
    looks: dict[str, Style],
) -> None:
    places = list(shown.commits)
    for one in several:
        look, values = looks[one.runner], one.values[places] * 1e6
        axes.plot(
            range(len(places)),
            values,
            color=look.colour,
            linestyle=_dash(look.dash),
            marker=".",
            markersize=3,
            linewidth=1,
            label=one.runner,
        )
        at = [places.index(change.index) for change in one.changes]
        axes.plot(at, values[at], "o", mfc="none", color=look.colour, markersize=8)
    view = several[0].view.split(", ")
    axes.set_title(f"{op}, {view[1]}", fontsize=9, loc="left")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color="#e3e7eb", linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    names = [commit.hash[:7] for commit in shown.commits.values()]
    axes.set_xticks(range(len(places)), names, rotation=90, fontsize=6)


def _dash(dash: str) -> str | tuple[int, tuple[float, ...]]:
    """Bokeh's dashes, of lengths in pixels, as matplotlib's, in widths of the line."""
    if dash == "solid":
        return "-"
    parts = [float(part) / 1.5 for part in dash.split()]
    return 0, tuple(parts * (2 if len(parts) == 1 else 1))
