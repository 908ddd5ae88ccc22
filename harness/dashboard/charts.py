"""Charts of the pages: Bokeh's figures as JSON, with the points of each.

Bokeh takes a tenth of a second for a figure, so one of each kind is made and filled for
each chart. The page's script (static/charts.js) embeds them, gives them the colours of
the page, and hides backends: Bokeh's own legend cannot be reached with the keyboard.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from bokeh import models
from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.plotting import figure

from gradwatch.harness.dashboard.matrix import BAD, GOOD, Style
from gradwatch.harness.dashboard.series import Series
from gradwatch.harness.project.git import Commit
from gradwatch.harness.project.records import TimeRecord

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

    A ratio can be 0, which a logarithmic axis cannot show: it is drawn below all
    others.
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
