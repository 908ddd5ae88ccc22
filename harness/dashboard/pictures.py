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
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import offset_copy

from gradwatch.harness.dashboard.families import (
    MARKERS,
    Style,
    dialect_of,
    families,
    styles,
)
from gradwatch.harness.dashboard.machine import MachineResults, machine_results
from gradwatch.harness.dashboard.matrix import Cell, Cells, matrix, short
from gradwatch.harness.dashboard.series import METRICS, History, Series, read_histories
from gradwatch.harness.dashboard.sources import Source, read_results
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.git import Commit
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.verdicts import SIGNS

_MARKERS = dict(zip(MARKERS, "os^Dvh*", strict=True))
_GOOD, _BAD, _KNOWN, _NOTHING = "#d9efdf", "#f7cfcb", "#fbe6bd", "#eef1f4"
_LOOSE, _GRID = "#eaf0c4", "#e3e7eb"  # loose is between good and known
AGREEMENT = "Worst error of a gradient, in rounding radii"
TIMES = "Time, relative to the fastest backend whose gradient is right"
HISTORY = "Time of a backward pass over the commits, in µs (a ring: the level changed)"
_WIDTH = 8.6  # inches: a page of GitHub shows them at about their own size
_ROOMY = 0.8  # inches a column in which the name of a dialect fits beside the next one
_LETTERS = 11  # of the legend, an inch
_NAMES = 46  # points: the height of the longest name of a dialect, written upwards
#: Of the history: fewer values are no trend; more panels would be too small.
LEAST, PANELS, _COLUMNS = 3, 6, 2
_PANEL, _FOOT, _LINE, _IN_LINE = 2.1, 0.18, 0.19, 5  # inches, and names in a line
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
        pictures = [*_of_runs(results), *_of_history(results)]
        drawn = [_save(folder, *picture) for picture in pictures]
    if not drawn:
        raise NothingToDraw(f"no results in {results}: gradwatch agree makes some")
    return drawn


#: The file's name, the picture, its source, its title, and what it shows in words.
Picture = tuple[str, Figure, str, str, str]


def _of_runs(results: Path) -> Iterator[Picture]:
    """The pictures of the newest verdicts and times."""
    read = read_results(results)
    recorded = [s for s in read.sources if s.file.startswith("recorded/")]
    read.sources = recorded or read.sources
    if not read.machines:
        return
    here = machine_results(read, read.machines[0])
    cells = _judged(here)
    if source := here.newest("agree"):
        words, origin = _in_words(cells), _origin(source)
        if any(cell.older for row in cells.values() for cell in row.values()):
            origin += "; in part from older commits"
        if here.first_looks():
            origin += "; a first look: one case of each op"
        yield "agreement.svg", _agreement(cells), origin, AGREEMENT, words
        yield "agreement-narrow.svg", _folded(cells), origin, AGREEMENT, words
    if source := here.newest("time"):
        yield (
            "times.svg",
            _times(cells, here),
            _origin(source),
            TIMES,
            "The fastest is at 1×.",
        )


def _judged(here: MachineResults) -> Cells:
    """The cells of the ops and backends that the runs had: others would be all "?"."""
    ops, runners = ({place[i] for place in here.judged} for i in (0, 1))
    ran = [runner for runner in here.runners if runner in runners]
    cells = matrix(here)
    return {op: {r: cells[op][r] for r in ran} for op in cells if op in ops}


def _origin(source: Source) -> str:
    """The machine, commit and date of a document."""
    about = source.environment
    changed = " with uncommitted changes" if about.dirty else ""
    return f"{source.machine}, commit {about.commit[:8]}{changed}, {about.date[:10]}"


def _save(
    folder: Path, name: str, drawn: Figure, origin: str, title: str, words: str
) -> Path:
    """Write a picture, with a name and a text for those who cannot see it."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    drawn.text(0.01, 0.004, origin, fontsize=7, color="#5a6672")
    # No date in the file itself: it would change with every drawing.
    drawn.savefig(file, format="svg", metadata={"Date": None})
    start, svg, rest = file.read_text(encoding="utf-8").partition("<svg ")
    attributes, close, body = rest.partition(">")
    named = f"<title>{escape(title)}</title>\n<desc>{escape(words)}</desc>"
    replace_file(file, f'{start}{svg}role="img" {attributes}{close}\n{named}{body}')
    return file


# The agreement -------------------------------------------------------------------


def _in_words(cells: Cells) -> str:
    """How many ops and backends there are, how many of each verdict, and the worst."""
    every = [cell for row in cells.values() for cell in row.values()]
    counts = Counter(
        "known defect"
        if cell.defect and not cell.wrong
        else {"none": "not judged"}.get(cell.verdict, cell.verdict)
        for cell in every
    )
    named = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    odd = [c.description for c in every if c.wrong or c.verdict == "imprecise"]
    count = len(next(iter(cells.values())))
    return f"{len(cells)} ops on {count} backends: {named}. {'; '.join(odd)}".strip()


def _legend(rows: Iterable[Iterable[Cell]], width: float) -> str:
    """The signs that occur, in words, in lines that fit into `width` inches."""
    occur = {cell.verdict for row in rows for cell in row}
    words = [f"{sign} {name}" for name, (sign, _) in SIGNS.items() if name in occur]
    words += ["· not judged"] if "none" in occur else []
    words += ["* a known defect"]
    whole = [word.replace(" ", "\N{NO-BREAK SPACE}") for word in words]
    return textwrap.fill(", ".join(whole), int(width * _LETTERS))


def _canvas(ops: Cells | Mapping[str, Any], title: str, width: float) -> Axes:
    """Axes with a row for each op."""
    below = ConstrainedLayoutEngine(rect=(0, 0.03, 1, 0.97))  # room for the source
    drawn = Figure(figsize=(width, 0.9 + 0.27 * len(ops)), layout=below)
    axes = drawn.subplots()
    drawn.suptitle(title, x=0.01, ha="left", fontsize=10)
    axes.set_yticks(range(len(ops)), list(ops))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return axes


def _agreement(cells: Cells) -> Figure:
    """Every op on every backend, the backends of a framework beside each other."""
    grouped = families(next(iter(cells.values())))
    runners = [runner for family in grouped for runner in family.runners]
    rows = {op: [row[runner] for runner in runners] for op, row in cells.items()}
    drawn = _cells(rows, [dialect_of(runner) for runner in runners])
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


def _folded(cells: Cells) -> Figure:
    """The worst verdict of each framework on each op, for a narrow page."""
    grouped = families(next(iter(cells.values())))
    rows = {op: [f.worst(row) for f in grouped] for op, row in cells.items()}
    return _cells(rows, [family.name.replace(" on ", "\n") for family in grouped], 4.6)


def _cells(
    rows: Mapping[str, Sequence[Cell]], names: Sequence[str], width: float = _WIDTH
) -> Figure:
    """A row of cells for each op under the names of the columns; `width` in inches."""
    axes = _canvas(rows, f"{AGREEMENT}\n{_legend(rows.values(), width)}", width)
    crowded = width / len(names) < _ROOMY
    axes.set_xticks(range(len(names)), names)
    axes.xaxis.tick_top()
    axes.tick_params("x", labelrotation=90 if crowded else 0, labelsize=8, pad=2)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    written: dict[str, Any] = {"ha": "center", "va": "center", "linespacing": 0.95}
    for y, row in enumerate(rows.values()):
        for x, cell in enumerate(row):
            known = bool(cell.defect) and not cell.wrong
            calm = {"agree": _GOOD, "imprecise": _LOOSE}.get(cell.verdict, _NOTHING)
            back = _BAD if cell.wrong else _KNOWN if known else calm
            axes.barh(y, 0.94, left=x - 0.47, height=0.86, color=back)
            text = f"{cell.sign}{'*' if known else ''} {short(cell.ratio)}".strip()
            if crowded and len(text) > 6:  # "✗* 5.4e8" is as wide as two cells
                text = text.replace(" ", "\n")
            axes.text(x, y, text, fontsize=6.5 if crowded else 8, **written)
    return cast(Figure, axes.figure)


# The times -----------------------------------------------------------------------


def _times(cells: Cells, here: MachineResults) -> Figure:
    axes = _canvas(cells, TIMES, _WIDTH)
    for runner, look in styles(here.runners).items():
        speeds = [
            row[runner].speed if runner in row else None for row in cells.values()
        ]
        points = [(speed, y) for y, speed in enumerate(speeds) if speed is not None]
        if points:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, _MARKERS[look.marker], c=look.colour, ms=5, label=runner)
    axes.set_xscale("log")
    axes.grid(axis="both", color=_GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")
    below = (0.45, -0.05)
    axes.legend(loc="upper center", bbox_to_anchor=below, ncols=4, frameon=False)
    return cast(Figure, axes.figure)


# The history ---------------------------------------------------------------------


def _of_history(results: Path) -> Iterator[Picture]:
    """The picture of the machine with the most commits, if there are enough."""
    histories, _ = read_histories(results / "asv", git.log(ROOT))
    if not histories:
        return
    longest = max(histories, key=lambda m: len(histories[m].commits))
    lines = _lines(histories[longest])
    every = [one for several in lines.values() for one in several]
    if not every:
        return
    present = np.flatnonzero(np.isfinite([one.values for one in every]).any(axis=0))
    commits = {place: histories[longest].commits[place] for place in map(int, present)}
    first, *_, last = commits.values()
    ends = " to ".join(f"{c.hash[:8]} ({c.date[:10]})" for c in (first, last))
    changed = "; ".join(
        f"{one.op} on {one.runner} {change.relative_change:+.0%} at"
        f" {commits[change.index].hash[:8]}"
        for one in every
        for change in one.changes
    )
    count = f"{len({one.runner for one in every})} backends, {len(commits)} commits"
    words = f"{', '.join(lines)} on {count}: {changed or 'no change of level'}."
    origin = f"{longest}, {len(commits)} commits, {ends}"
    yield "history.svg", _trends(lines, commits), origin, HISTORY, words


def _lines(history: History) -> dict[str, list[Series]]:
    """The ops with the most values; of each runner the longest series of a backward.

    A runner may have run in several environments; the others are left to the dashboard.
    """
    lines: dict[str, list[Series]] = {}
    for op, several in history.by_op.items():
        longest = {
            one.runner: one
            for one in sorted(several, key=_count)
            if one.metric == METRICS["time_backward"]
            and "speed set" in one.view
            and _count(one) >= LEAST
        }
        lines[op] = [longest[runner] for runner in sorted(longest)]
    most = sorted(lines, key=lambda op: -sum(map(_count, lines[op])))[:PANELS]
    return {op: lines[op] for op in sorted(most) if lines[op]}


def _count(one: Series) -> int:
    return int(np.isfinite(one.values).sum())


def _trends(lines: Mapping[str, list[Series]], commits: Mapping[int, Commit]) -> Figure:
    """A panel for each op, a line for each backend over the commits."""
    runners = sorted({one.runner for several in lines.values() for one in several})
    rows, looks = -(-len(lines) // _COLUMNS), styles(runners)
    foot = _FOOT + _LINE * -(-len(runners) // _IN_LINE)
    height = 0.5 + _PANEL * rows + foot
    above = ConstrainedLayoutEngine(rect=(0, foot / height, 1, 1 - foot / height))
    drawn = Figure(figsize=(_WIDTH, height), layout=above)
    drawn.suptitle(HISTORY, x=0.01, ha="left", fontsize=10)
    panels = drawn.subplots(rows, _COLUMNS, squeeze=False, sharex=True)
    for axes in panels.flat[len(lines) :]:
        axes.set_axis_off()
    known: dict[str, Any] = {}
    for axes, (op, several) in zip(panels.flat, lines.items(), strict=False):
        known |= {one.runner: _line(axes, one, commits, looks) for one in several}
        _panel(axes, f"{op}, {several[0].view.split(', ')[1]}", commits)
    drawn.legend(
        [known[runner] for runner in runners],
        runners,
        loc="lower center",
        bbox_to_anchor=(0.5, _FOOT / height),
        ncols=_IN_LINE,
        frameon=False,
        fontsize=8,
    )
    return drawn


def _line(
    axes: Axes, one: Series, commits: Mapping[int, Commit], looks: Mapping[str, Style]
) -> Any:
    """Draw the values of a series, and rings around changes; return the line."""
    places, look = list(commits), looks[one.runner]
    values = one.values[places] * 1e6
    dash = [float(part) / 1.5 for part in look.dash.split() if part != "solid"]
    dashes = (0, tuple(dash * (2 if len(dash) == 1 else 1))) if dash else "-"
    (line,) = axes.plot(
        range(len(places)), values, ".", c=look.colour, ls=dashes, lw=1, ms=3
    )
    at = [places.index(change.index) for change in one.changes]
    axes.plot(at, values[at], "o", mfc="none", color=look.colour, markersize=8)
    return line


def _panel(axes: Axes, title: str, commits: Mapping[int, Commit]) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y", color=_GRID, linewidth=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    names = [commit.hash[:7] for commit in commits.values()]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=6)
