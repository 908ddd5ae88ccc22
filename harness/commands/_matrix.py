"""The table of ops and backends in a terminal, folded until it fits.

Each backend has a column. Where these do not fit, those of a framework fold into one,
which shows the worst verdict; where that does not fit either, it shows the sign alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gradwatch.harness.agreement.overall import Overall, overall
from gradwatch.harness.dashboard.families import family_of
from gradwatch.harness.dashboard.matrix import short
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import SIGNS

#: The verdict on each op in each column.
Cells = Mapping[tuple[str, str], Overall]

_FOLDED = "of each framework the worst (*: known); wider, or in --json: each backend"
_WIDE = 10_000  # characters: wider than any table


def fitting(records: Sequence[AgreeRecord], console: Console) -> Table:
    """The first of three tables that fits into the console, or else the narrowest."""
    by_backend = _cells(records, str)
    by_framework = _cells(records, family_of)
    anything = console.options.update(width=_WIDE)
    for cells, text in ((by_backend, _full), (by_framework, _brief)):
        table = _table(cells, text, "" if text is _full else _FOLDED)
        if console.measure(table, options=anything).maximum <= console.width:
            return table
    return _table(by_framework, _sign, _FOLDED)


def _cells(records: Sequence[AgreeRecord], column: Callable[[str], str]) -> Cells:
    """By op, and by the column of a backend."""
    cells = defaultdict[tuple[str, str], list[AgreeRecord]](list)
    for record in records:
        cells[record.op, column(record.backend)].append(record)
    return {place: overall(of_it) for place, of_it in cells.items()}


def _table(cells: Cells, text: Callable[[Overall], Text], folded: str = "") -> Table:
    """Ops below each other, and a column for each backend or framework."""
    ops, columns = (sorted({place[i] for place in cells}) for i in (0, 1))
    table = Table(
        title="worst error in rounding radii",
        title_justify="left",
        caption=folded,
        caption_justify="left",
        box=None if folded else box.HEAVY_HEAD,
        padding=(0, 1),
        pad_edge=not folded,
        collapse_padding=bool(folded),
    )
    table.add_column("op")
    for name in columns:
        table.add_column(escape(name).replace("_", "\n", 1), justify="right")
    for op in ops:
        row = (cells.get((op, name)) for name in columns)
        texts = [text(judged) if judged else "" for judged in row]
        table.add_row(escape(op), *texts)
    return table


def _full(judged: Overall) -> Text:
    """The worst ratio, the sign of the verdict, and whether the defect is known."""
    ratio = judged.worst.distance
    number = "" if ratio is None else f"{ratio:.2g} "
    known = (" known", "yellow") if judged.listed else ""
    return Text.assemble(number, _sign(judged, mark=""), known)


def _brief(judged: Overall) -> Text:
    """The ratio with two digits, and the sign."""
    number = short(judged.worst.distance).replace("∞", "inf")  # ∞ is a verdict's sign
    return Text.assemble(f"{number} " if number else "", _sign(judged))


def _sign(judged: Overall, mark: str = "*") -> Text:
    """The sign, and a mark if the defect is known."""
    sign, colour = SIGNS[judged.verdict]
    known = judged.listed and not judged.unexpected
    return Text.assemble((sign, colour), mark if known else "")
