"""Charts: empty frames made with Bokeh once, and the data points of each page.

A frame is an empty chart. The page's script (static/charts.js) copies it, fills its two
data sources and sets ranges and colours. Each point names its runner. Colour, marker
and dash of the runners are in one table, so that the page's own legend can hide some of
them (Bokeh's legend cannot be reached with the keyboard).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.core.types import ID
from bokeh.embed import json_item
from bokeh.models import (
    ColumnDataSource,
    CustomJSTickFormatter,
    FixedTicker,
    HoverTool,
    LogTicker,
    Range1d,
    TapTool,
)
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from gradwatch.harness.dashboard.matrix import short
from gradwatch.harness.project.records import AgreeRecord, TimeRecord

Chart = dict[str, Any]

# The agreement chart shows ratio over limit between these bounds; values outside are
# drawn on the edge: exact results have ratio 0, a NaN has an infinite one.
LEAST, MOST = 1e-4, 1e4

LIMIT = "#d4351c"  # contrast of at least 3:1 on both backgrounds

#: Columns of the points of every chart.
POINTS = ("x", "y", "low", "high", "runner", "what", "detail")

# Labels of a logarithmic axis, such as 0.01 and 10⁵
_POWERS = """
    const p = Math.round(Math.log10(tick))
    if (Math.abs(tick / 10 ** p - 1) > 1e-6 || (p >= -2 && p <= 3)) {
      return String(+tick.toPrecision(3))
    }
    return "10" + String(p).replace("-", "⁻").replace(/\\d/g, d => "⁰¹²³⁴⁵⁶⁷⁸⁹"[d])
"""
_BYTES = "return gradwatch.formatted(tick, 'bytes')"
_UNITS = "return gradwatch.formatted(tick, gradwatch.unit)"


@functools.cache
def frames(regimes: tuple[str, ...]) -> dict[str, Chart]:
    """The empty charts of a site, by name; `regimes` label the agreement chart.

    Machines mostly have the same, and Bokeh takes a tenth of a second for them.
    """
    return {
        "agreement": _item(_agreement(regimes)),
        "times": _item(_times()),
        "history": _item(_history()),
        "ratios": _item(_ratios()),
    }


def _figure(**options: Any) -> tuple[Any, ColumnDataSource]:
    """A chart of lines and of points with intervals, and the source of the points."""
    plot = figure(
        sizing_mode="stretch_width",
        toolbar_location="above",
        tools="pan,box_zoom,wheel_zoom,reset",
        active_scroll=None,
        background_fill_alpha=0,
        border_fill_alpha=0,
        outline_line_alpha=0,
        x_range=options.pop("x_range", Range1d(start=1, end=10)),
        y_range=Range1d(start=1, end=10),
        y_axis_type="log",
        **options,
    )
    plot.toolbar.logo = None
    plot.yaxis.ticker = LogTicker(desired_num_ticks=5)  # more labels would overlap
    lines = ColumnDataSource(
        {name: [] for name in ("xs", "ys", "colour", "dash")}, name="lines"
    )
    plot.multi_line(
        "xs",
        "ys",
        source=lines,
        line_color="colour",
        line_dash={"field": "dash"},
        line_width=1.75,
    )
    columns = (*POINTS, "colour", "marker", "size")
    points = ColumnDataSource({name: [] for name in columns}, name="points")
    plot.segment("x", "low", "x", "high", source=points, line_color="colour")
    return plot, points


def _dots(plot: Any, points: ColumnDataSource, *, alpha: float = 1.0) -> None:
    """Draw the points, with a tooltip for each."""
    drawn = plot.scatter(
        "x",
        "y",
        source=points,
        marker={"field": "marker"},
        size="size",
        color="colour",
        fill_alpha=alpha,
    )
    lines = [("", "@runner"), ("", "@what"), ("", "@detail")]
    plot.add_tools(HoverTool(tooltips=lines, renderers=[drawn]))


def _item(plot: Any) -> Chart:
    """The chart as `Bokeh.embed.embed_item` takes it."""
    return dict(json_item(plot, ID("chart")))


def _agreement(regimes: Sequence[str]) -> Any:
    plot, points = _figure(
        height=340,
        x_range=Range1d(start=-0.5, end=max(len(regimes), 1) - 0.5),
        y_axis_label="error ÷ allowed error",
    )
    _dots(plot, points, alpha=0.5)
    plot.add_layout(
        Span(location=1, dimension="width", line_color=LIMIT, line_dash="dashed")
    )
    plot.xaxis.ticker = FixedTicker(ticks=list(range(len(regimes))))
    plot.xaxis.major_label_overrides = dict(enumerate(regimes))
    plot.xaxis.major_label_orientation = math.pi / 4
    plot.xgrid.visible = False
    plot.yaxis.formatter = CustomJSTickFormatter(code=_POWERS)
    return plot


def _times() -> Any:
    plot, points = _figure(
        height=300, x_axis_type="log", x_axis_label="bytes moved, at least"
    )
    _dots(plot, points)
    plot.xaxis.ticker = LogTicker(desired_num_ticks=5)
    plot.xaxis.formatter = CustomJSTickFormatter(code=_BYTES)
    plot.yaxis.formatter = CustomJSTickFormatter(code=_UNITS)
    return plot


def _history() -> Any:
    plot, points = _figure(height=380, x_axis_label="commit, oldest first")
    steps = ColumnDataSource({"x": [], "y": [], "colour": []}, name="steps")
    ring = {"size": 16, "fill_alpha": 0, "line_width": 2.5}
    plot.scatter("x", "y", source=steps, line_color="colour", **ring)
    _dots(plot, points)
    plot.add_tools(TapTool())
    plot.yaxis.formatter = CustomJSTickFormatter(code=_UNITS)
    return plot


def _ratios() -> Any:
    plot, points = _figure(
        height=320,
        x_axis_label="comparisons, in order of their ratio",
        y_axis_label="B ÷ A",
    )
    _dots(plot, points)
    plot.add_layout(Span(location=1, dimension="width", line_dash="dashed"))
    plot.yaxis.formatter = CustomJSTickFormatter(code=_POWERS)
    return plot


# Points -------------------------------------------------------------------------


def agreement(
    judged: Mapping[str, Sequence[AgreeRecord]], dtype: str, regimes: Sequence[str]
) -> Chart | None:
    """Each tensor's ratio over its limit, by regime; above 1 is wrong.

    Args:
        judged: Records of one op by runner.
        dtype: Only records of this dtype; returns None if there are none.
        regimes: The regimes of the frame, in its order.
    """
    places = {regime: place for place, regime in enumerate(regimes)}
    rows = []
    for place, (runner, records) in enumerate(judged.items()):
        offset = 0.8 * ((place + 0.5) / len(judged) - 0.5)
        for r in records:
            share = _share(r)
            if r.dtype == dtype and share is not None:
                x = round(places[r.regime] + offset, 3)
                what = f"{r.tensor} of {_within(r.case)}"
                detail = f"{r.verdict}, ratio {short(r.distance)}"
                rows.append((x, share, None, None, runner, what, detail))
    if not rows:
        return None
    top = max(3.0, *(row[1] for row in rows))  # leaves room for the limit at 1
    return {
        "frame": "agreement",
        "points": _columns(rows),
        "y": [LEAST / 2, 2 * top],
        "size": 6,
    }


def _share(record: AgreeRecord) -> float | None:
    """Ratio over limit, clipped to the bounds of the chart."""
    ratio = record.distance
    if ratio is None:
        return None
    share = ratio / (record.limit or math.inf)
    return MOST if math.isnan(share) else float(f"{min(max(share, LEAST), MOST):.3g}")


def _columns(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return dict(zip(POINTS, map(list, zip(*rows, strict=True)), strict=True))


def _within(case: str) -> str:
    """A case without its op: normal-3x8-float32 for layer_norm[normal-3x8-float32]."""
    return case.partition("[")[2].rstrip("]") or case


def times(
    timed: Mapping[str, Sequence[TimeRecord]],
    dtype: str,
    phase: str,
    bandwidth: float | None,
) -> Chart | None:
    """Seconds against bytes moved, with intervals and the limit set by the memory.

    Args:
        timed: Records of one op by runner.
        dtype, phase: Only records of these; returns None if there are none.
        bandwidth: Bytes per second that a copy moves on that machine, if known.
    """
    rows = [
        (r.bytes, r.seconds, r.low, r.high, runner, r.case, _detail(r))
        for runner, records in timed.items()
        for r in sorted(records, key=_bytes)
        if (r.dtype, r.phase) == (dtype, phase) and _bytes(r) > 0
    ]
    if not rows:
        return None
    points = _columns(rows)
    ends = min(points["x"]), max(points["x"])
    limit = [[end, end / bandwidth] for end in ends] if bandwidth else None
    return {"frame": "times", "points": points, "limit": limit, "joined": True}


def _bytes(record: TimeRecord) -> int:
    return record.bytes or 0


def _detail(record: TimeRecord) -> str:
    low, high = clock(record.low), clock(record.high)
    return f"{clock(record.seconds)} ({low} to {high})"


def clock(seconds: float | None) -> str:
    """A time with three digits and a suitable unit: 12.3 µs."""
    if seconds is None:
        return ""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
