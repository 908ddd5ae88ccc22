"""Tables of judgements: as text at a prompt, as HTML in a notebook.

The first column is the verdict's sign, whose colour says what it means.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from gradwatch.harness.project.verdicts import PASSING, SIGNS

_GOOD, _BAD, _OTHER = "#2e8b57", "#d4351c", "#a8730e"  # readable on white and on black
_COLOURS = {
    sign: _OTHER if name in PASSING else _BAD for name, (sign, _) in SIGNS.items()
} | {SIGNS["agree"][0]: _GOOD}

Cells = Sequence[Sequence[str]]  # the header first


def as_text(cells: Cells) -> list[str]:
    """The lines of a table with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def as_html(
    cells: Cells, headline: str = "", notes: Iterable[str] = (), folded: str = ""
) -> str:
    """A table with a headline above and notes below; `folded` is code to unfold."""
    parts = [f"<p><b>{html.escape(headline)}</b></p>"] if headline else []
    body = list(zip(*cells[1:], strict=True))
    numbers = [any(map(_is_number, column)) for column in body]  # of no row: no column
    lines = [_line("td" if i else "th", row, numbers) for i, row in enumerate(cells)]
    parts.append(f"<table><thead>{lines[0]}</thead><tbody>")
    parts += [*lines[1:], "</tbody></table>"]
    parts += [f"<p>{html.escape(note)}</p>" for note in notes if note]
    if folded:
        code = f"<pre>{html.escape(folded)}</pre>"
        parts.append(f"<details><summary>a script that shows it</summary>{code}")
        parts.append("</details>")
    return "".join(parts)


def _line(tag: str, cells: Sequence[str], numbers: Sequence[bool]) -> str:
    """A row; numbers are at the right, sign and verdict have the verdict's colour."""
    made, colour = [], _COLOURS.get(cells[0], "")
    for cell, number in zip_longest(cells, numbers):
        style = f"text-align:{'right' if number else 'left'}"
        if colour and (cell == cells[0] or cell in SIGNS):
            style += f";color:{colour};font-weight:bold"
        made.append(f'<{tag} style="{style}">{html.escape(cell)}</{tag}>')
    return f"<tr>{''.join(made)}</tr>"


def _is_number(text: str) -> bool:
    try:
        float(text.removeprefix("over "))
    except ValueError:
        return False
    return True
