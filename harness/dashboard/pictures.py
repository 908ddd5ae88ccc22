"""Pictures for the README: the agreement matrix, relative times, the history.

Each picture names the machine, commit and date of its data. The same results give the
same bytes, so a file changes only when its data do.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from xml.sax.saxutils import escape

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import offset_copy

from gradwatch.harness.dashboard.families import dialect_of, families
from gradwatch.harness.dashboard.machine import MachineResults, machine_results
from gradwatch.harness.dashboard.matrix import Cell, matrix, short
from gradwatch.harness.dashboard.series import read_histories
from gradwatch.harness.dashboard.sources import Source, read_results
from gradwatch.harness.dashboard.styles import MARKERS, styles
from gradwatch.harness.dashboard.trends import TITLE as TREND
from gradwatch.harness.dashboard.trends import figure as trend_figure
from gradwatch.harness.dashboard.trends import trends
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.verdicts import SIGNS

_MARKERS = dict(zip(MARKERS, "os^Dvh*", strict=True))
_GOOD, _BAD, _KNOWN, _NOTHING = "#d9efdf", "#f7cfcb", "#fbe6bd", "#eef1f4"
_LOOSE = "#eaf0c4"  # between good and known
_TITLE = "Worst error of a gradient, in rounding radii"
_WIDTH = 8.6  # inches: a page of GitHub shows them at about their own size
_ROOMY = 0.8  # inches a column in which the name of a dialect fits beside the next one
_LETTERS = 11  # of the legend, an inch
_NAMES = 46  # points: the height of the longest name of a dialect, written upwards
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
    """Draw agreement.svg, wide and narrow, times.svg and history.svg.

    What there are no results of is not drawn. Recorded results are preferred: a README
    shows committed results, not the last run.

    Raises:
        NothingToDraw: There are no results at all.
    """
    with mpl.rc_context(cast(Any, _STYLE)):
        drawn = [*_of_runs(results, folder), *_of_history(results, folder)]
    if not drawn:
        raise NothingToDraw(f"no results in {results}: gradwatch agree makes some")
    return drawn


def _of_runs(results: Path, folder: Path) -> Iterator[Path]:
    """The pictures of the newest verdicts and times."""
    results_read = read_results(results)
    recorded = [s for s in results_read.sources if s.file.startswith("recorded/")]
    results_read.sources = recorded or results_read.sources
    if not results_read.machines:
        return
    here = machine_results(results_read, results_read.machines[0])
    cells = _judged(here)
    if source := here.newest("agree"):
        older = any(cell.older for row in cells.values() for cell in row.values())
        for name, figure in (("", _agreement), ("-narrow", _folded)):
            file = folder / f"agreement{name}.svg"
            part = _part_of(here, older)
            yield _save(figure(cells), _origin(source) + part, file)
            _described(file, _TITLE, _in_words(cells))
    if source := here.newest("time"):
        yield _save(_times(cells, here), _origin(source), folder / "times.svg")


def _of_history(results: Path, folder: Path) -> Iterator[Path]:
    """The picture of the machine with the most commits, if there are enough."""
    histories, _ = read_histories(results / "asv", git.log(ROOT))
    longest = max(histories, key=lambda m: len(histories[m].commits), default=None)
    shown = None if longest is None else trends(histories[longest])
    if shown is not None:
        file = folder / "history.svg"
        yield _save(trend_figure(shown), f"{longest}, {shown.span()}", file)
        _described(file, TREND, shown.in_words())


def _part_of(here: MachineResults, older: bool) -> str:
    """What the caption adds where not all of it is of one whole run."""
    look = "; a first look: one case of each op" if here.first_look() else ""
    return f"{'; in part from older commits' if older else ''}{look}"


def _judged(here: MachineResults) -> dict[str, dict[str, Cell]]:
    """The cells of the ops and backends that the runs had: others would be all "?"."""
    ops, runners = ({place[i] for place in here.judged} for i in (0, 1))
    ran = [runner for runner in here.runners if runner in runners]
    cells = matrix(here)
    return {op: {r: cells[op][r] for r in ran} for op in cells if op in ops}


def _origin(source: Source) -> str:
    """The machine, commit and date of a document."""
    changed = " with uncommitted changes" if source.dirty else ""
    return f"{source.machine}, commit {source.commit[:8]}{changed}, {source.date[:10]}"


def _save(drawn: Figure, caption: str, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn.text(0.01, 0.004, caption, fontsize=7, color="#5a6672")
    # No date in the file itself: it would change with every drawing.
    drawn.savefig(file, format="svg", metadata={"Date": None})
    return file


def _described(file: Path, title: str, description: str) -> Path:
    """The same picture with a name and a text for those who cannot see it."""
    text = file.read_text(encoding="utf-8")
    start, end, rest = text.partition("<svg ")
    attributes, close, body = rest.partition(">")
    named = f"<title>{escape(title)}</title>\n<desc>{escape(description)}</desc>"
    replace_file(file, f'{start}{end}role="img" {attributes}{close}\n{named}{body}')
    return file


def _in_words(cells: Mapping[str, Mapping[str, Cell]]) -> str:
    """How many ops and backends there are, how many of each verdict, and the worst."""
    every = [cell for row in cells.values() for cell in row.values()]
    counts = Counter(_verdict(cell) for cell in every)
    named = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    count = len(next(iter(cells.values())))
    odd = [c for c in every if c.wrong or c.verdict == "imprecise"]
    whats = "; ".join(c.description for c in odd)
    return f"{len(cells)} ops on {count} backends: {named}. {whats}".strip()


def _verdict(cell: Cell) -> str:
    if cell.defect and not cell.wrong:
        return "known defect"
    return "not judged" if cell.verdict == "none" else cell.verdict


def _legend(rows: Iterable[Iterable[Cell]], width: float) -> str:
    """The signs that occur, in words, in lines that fit into `width` inches."""
    occur = {cell.verdict for row in rows for cell in row}
    words = [f"{sign} {name}" for name, (sign, _) in SIGNS.items() if name in occur]
    words += ["· not judged"] if "none" in occur else []
    words += ["* a known defect"]
    whole = [word.replace(" ", "\N{NO-BREAK SPACE}") for word in words]
    return textwrap.fill(", ".join(whole), int(width * _LETTERS))


def _canvas(
    ops: Mapping[str, Any], title: str, width: float = _WIDTH
) -> tuple[Figure, Axes]:
    below = ConstrainedLayoutEngine(rect=(0, 0.03, 1, 0.97))  # room for the source
    drawn = Figure(figsize=(width, 0.9 + 0.27 * len(ops)), layout=below)
    axes = drawn.subplots()
    drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    axes.set_yticks(range(len(ops)), list(ops))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return drawn, axes


def _agreement(cells: Mapping[str, Mapping[str, Cell]]) -> Figure:
    """Every op on every backend, the backends of a framework beside each other."""
    grouped = families(next(iter(cells.values())))
    runners = [runner for family in grouped for runner in family.runners]
    drawn = _cells(
        {op: [row[runner] for runner in runners] for op, row in cells.items()},
        [dialect_of(runner) for runner in runners],
    )
    (axes,) = drawn.axes
    over = offset_copy(axes.get_xaxis_transform(), drawn, y=_NAMES, units="points")
    above = offset_copy(over, drawn, y=4, units="points")
    left = -0.5
    for family in grouped:
        right = left + len(family.runners)
        ends = [left + 0.06, right - 0.06]
        axes.plot(ends, [1, 1], transform=over, color="#8a949e", lw=1, clip_on=False)
        name = family.name.replace(" on ", "\n")
        middle = (left + right) / 2
        axes.text(middle, 1, name, transform=above, ha="center", fontsize=8)
        left = right
    return drawn


def _folded(cells: Mapping[str, Mapping[str, Cell]]) -> Figure:
    """The worst verdict of each framework on each op, for a narrow page."""
    grouped = families(next(iter(cells.values())))
    rows = {op: [f.worst(row) for f in grouped] for op, row in cells.items()}
    return _cells(rows, [family.name.replace(" on ", "\n") for family in grouped], 4.6)


def _cells(
    rows: Mapping[str, Sequence[Cell]], names: Sequence[str], width: float = _WIDTH
) -> Figure:
    """A row of cells for each op under the names of the columns; `width` in inches."""
    title = f"{_TITLE}\n{_legend(rows.values(), width)}"
    drawn, axes = _canvas(rows, title, width)
    crowded = width / len(names) < _ROOMY
    axes.set_xticks(range(len(names)), names)
    axes.xaxis.tick_top()
    axes.tick_params("x", labelrotation=90 if crowded else 0, labelsize=8, pad=2)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    for y, row in enumerate(rows.values()):
        for x, cell in enumerate(row):
            axes.barh(y, 0.94, left=x - 0.47, height=0.86, color=_back(cell))
            text = _label(cell)
            if crowded and len(text) > 6:  # "✗* 5.4e8" is as wide as two cells
                text = text.replace(" ", "\n")
            size = 6.5 if crowded else 8
            axes.text(
                *(x, y, text), ha="center", va="center", fontsize=size, linespacing=0.95
            )
    return drawn


def _back(cell: Cell) -> str:
    if cell.wrong:
        return _BAD
    if cell.defect:
        return _KNOWN
    return {"agree": _GOOD, "imprecise": _LOOSE}.get(cell.verdict, _NOTHING)


def _label(cell: Cell) -> str:
    """The sign and the ratio, and a star for a known defect."""
    known = "*" if cell.defect and not cell.wrong else ""
    return f"{cell.sign}{known} {short(cell.ratio)}".strip()


def _times(cells: Mapping[str, Mapping[str, Cell]], here: MachineResults) -> Figure:
    title = "Time, relative to the fastest backend whose gradient is right"
    drawn, axes = _canvas(cells, title)
    for runner, look in styles(here.runners).items():
        points = [
            (cell.speed, y)
            for y, row in enumerate(cells.values())
            if (cell := row.get(runner)) is not None and cell.speed is not None
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
