"""Pictures for the README: the agreement matrix, and times relative to the fastest.

Each picture names the machine, commit and date of its data. The same results give the
same bytes, so a file changes only when its data do.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from harness.dashboard.matrix import Cell, matrix, short
from harness.dashboard.sources import Source, read_results
from harness.dashboard.standing import Standing, standing
from harness.dashboard.styles import styles

_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "diamond": "D"}
_MARKERS |= {"inverted_triangle": "v", "hex": "h"}
_GOOD, _BAD, _KNOWN, _NOTHING = "#d9efdf", "#f7cfcb", "#fbe6bd", "#eef1f4"
_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
    "svg.hashsalt": "gradwatch",  # the same ids in every drawing
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib
    "font.size": 9,
}


class NothingToDraw(Exception):
    """There are no results yet."""


def draw(results: Path, folder: Path) -> list[Path]:
    """Draw agreement.svg, and times.svg if there are times; return the files.

    Recorded results are preferred: a README shows committed results, not the last run.

    Raises:
        NothingToDraw: No verdicts have been recorded.
    """
    results_read = read_results(results)
    recorded = [s for s in results_read.sources if s.file.startswith("recorded/")]
    results_read.sources = recorded or results_read.sources
    if not results_read.machines:
        raise NothingToDraw(f"no results in {results}: gradwatch agree makes some")
    here = standing(results_read, results_read.machines[0])
    judged = {op for op, _ in here.judged}
    cells = {op: row for op, row in matrix(here).items() if op in judged}
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with mpl.rc_context(cast(Any, _STYLE)):
        if source := here.newest("agree"):
            drawn.append(_save(_agreement(cells), source, folder / "agreement.svg"))
        if source := here.newest("time"):
            drawn.append(_save(_times(cells, here), source, folder / "times.svg"))
    return drawn


def _save(drawn: Figure, source: Source, file: Path) -> Path:
    changed = " with uncommitted changes" if source.dirty else ""
    caption = (
        f"{source.machine}, commit {source.commit[:8]}{changed}, {source.date[:10]}"
    )
    drawn.text(0.01, 0.004, caption, fontsize=7, color="#5a6672")
    # No date in the file itself: it would change with every drawing.
    drawn.savefig(file, format="svg", metadata={"Date": None})
    return file


def _canvas(ops: Mapping[str, Any], title: str) -> tuple[Figure, Axes]:
    below = ConstrainedLayoutEngine(rect=(0, 0.03, 1, 0.97))  # room for the source
    drawn = Figure(figsize=(8.6, 0.9 + 0.27 * len(ops)), layout=below)
    axes = drawn.subplots()
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_yticks(range(len(ops)), list(ops))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return drawn, axes


def _agreement(cells: Mapping[str, Mapping[str, Cell]]) -> Figure:
    drawn, axes = _canvas(cells, "Worst error of a gradient, in rounding radii")
    runners = list(next(iter(cells.values())))
    axes.set_xticks(range(len(runners)), [r.replace("_", "\n", 1) for r in runners])
    axes.xaxis.tick_top()
    axes.set(xlim=(-0.5, len(runners) - 0.5), ylim=(len(cells) - 0.5, -0.5))
    for y, row in enumerate(cells.values()):
        for x, cell in enumerate(row.values()):
            axes.barh(y, 0.94, left=x - 0.47, height=0.86, color=_back(cell))
            axes.text(x, y, _label(cell), ha="center", va="center", fontsize=8)
    return drawn


def _back(cell: Cell) -> str:
    if cell.wrong:
        return _BAD
    if cell.defect:
        return _KNOWN
    return _GOOD if cell.verdict == "agree" else _NOTHING


def _label(cell: Cell) -> str:
    known = " known" if cell.defect and not cell.wrong else ""
    return f"{cell.sign} {short(cell.ratio)}{known}".strip()


def _times(cells: Mapping[str, Mapping[str, Cell]], here: Standing) -> Figure:
    title = "Time, relative to the fastest backend whose gradient is right"
    drawn, axes = _canvas(cells, title)
    for runner, look in styles(here.runners).items():
        points = [
            (cell.speed, y)
            for y, row in enumerate(cells.values())
            if (cell := row[runner]).speed is not None
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                linestyle="none",
                marker=_MARKERS[look.marker],
                color=look.colour,
                markersize=5,
                label=runner,
            )
    axes.set_xscale("log")
    axes.grid(axis="both", color="#e3e7eb", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.45, -0.05), ncols=4, frameon=False
    )
    return drawn
