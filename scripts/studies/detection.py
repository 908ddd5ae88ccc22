"""Draws the chart of docs/selftest.md: the caught errors and false alarms of judges.

Lines differ in marker and dash as well as in colour, so that they read in grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradwatch.harness.project.records import Detection, FalseAlarms, SelftestSummary
from gradwatch.harness.selftest.scoring import JUDGES

# Okabe and Ito's colours, told apart by any eye; the judge is black and in front.
_COLOURS = (
    *("black", "#0072B2", "#56B4E9", "#882255", "#999933"),  # the last two: Tol's
    *("#009E73", "#D55E00", "#CC79A7", "#E69F00"),
)
_DASHES: tuple[Any, ...] = (
    *("-", "--", "-.", ":"),
    *((0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (7, 2)), (0, (2, 2, 6, 2))),
)
_LINES: dict[str, dict[str, Any]] = {
    judge: {"color": colour, "marker": marker, "linestyle": dash}
    for judge, colour, marker, dash in zip(
        JUDGES, _COLOURS, "osDv^<>PX", _DASHES, strict=True
    )
}
SETTINGS: Any = {"font.size": 9, "svg.hashsalt": "gradwatch", "svg.fonttype": "none"}
_SHOWN = ("float64", "float32")


def chart_detection(summary: SelftestSummary, target: Path) -> None:
    """Draw the share caught, by effect, in float64 and float32, and falsely accused.

    Raises:
        OSError: the file cannot be written.
        ValueError: its suffix is no format that matplotlib knows.
    """
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(10.5, 4), layout="constrained")
        left, middle, right = figure.subplots(1, 3, width_ratios=(5, 3.4, 3))
        for ax, dtype in zip((left, middle), _SHOWN, strict=True):
            _caught(ax, dtype, summary.detection)
        _accused(right, summary.false_alarms)
        left.set_ylabel("planted errors caught, %")
        handles, labels = left.get_legend_handles_labels()
        place: Any = {"loc": "outside lower center", "ncols": 4, "frameon": False}
        figure.legend(handles, labels, **place)
        write_figure(figure, target)


def write_figure(figure: Figure, target: Path) -> None:
    """Save a chart without the date, so that equal figures give equal files."""
    target.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"Date": None} if target.suffix == ".svg" else None
    figure.savefig(target, dpi=200, metadata=metadata)


def _caught(ax: Axes, dtype: str, rows: Sequence[Detection]) -> None:
    numeric = [r for r in rows if r.dtype == dtype and r.effect != "structure"]
    shown = numeric[::-1]
    for judge, line in _LINES.items():
        known = [(i, r.caught) for i, r in enumerate(shown) if judge in r.caught]
        if known:
            places, shares = [i for i, _ in known], [100 * c[judge] for _, c in known]
            front = 3 if judge == JUDGES[0] else 2
            ax.plot(places, shares, label=judge, zorder=front, **line)
    names = [r.effect.replace(" to ", "\nto ") for r in shown]
    ax.set_xticks(range(len(shown)), names)
    ax.set(title=dtype, xlabel="relative effect of the error", ylim=(-4, 104))
    ax.grid(axis="y", alpha=0.3)


def _accused(ax: Axes, rows: Sequence[FalseAlarms]) -> None:
    """Draw bars in two shades, one for each precision."""
    for i, (dtype, shade) in enumerate(zip(_SHOWN, ("0.25", "0.75"), strict=True)):
        shares: Mapping[str, float] = next(
            (r.accused for r in rows if r.dtype == dtype), {}
        )
        places = [
            k + 0.4 * i - 0.2 for k, judge in enumerate(JUDGES) if judge in shares
        ]
        values = [100 * shares[judge] for judge in JUDGES if judge in shares]
        bars = ax.barh(places, values, height=0.4, color=shade, label=dtype)
        ax.bar_label(bars, fmt="%.2g", padding=2, fontsize=7)
    ax.set_yticks(range(len(JUDGES)), JUDGES)
    ax.invert_yaxis()
    ax.margins(x=0.15)
    ax.set(title="false alarms", xlabel="right tensors accused, %")
    ax.legend(frameon=False)
