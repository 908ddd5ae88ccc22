"""Tables of judgements: as text at a prompt, as HTML in a notebook."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.project.verdicts import PASSING, SIGNS

_GOOD, _BAD, _OTHER = "#2e8b57", "#d4351c", "#a8730e"  # readable on white and on black
_COLOURS = {
    sign: _OTHER if name in PASSING else _BAD for name, (sign, _) in SIGNS.items()
} | {SIGNS["agree"][0]: _GOOD}

Cells = Sequence[Sequence[str]]  # the header first


class Judgements(tuple[Judgement, ...]):
    """The judgements of a call: a tuple that shows itself as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        notes = [j.story for j in self if not j.passes]
        return "\n".join([*as_text(self._cells()), *filter(None, notes)])

    def _repr_html_(self) -> str:
        notes = [j.story for j in self if not j.passes]
        return as_html(self._cells(), notes=notes)

    def _cells(self) -> list[tuple[str, ...]]:
        names = ("tensor", "verdict", "got", "expected", "ratio", "limit", "at")
        return [("", *names), *map(_cells, self)]


def _cells(j: Judgement) -> tuple[str, ...]:
    sign, at = SIGNS[j.verdict][0], ", ".join(map(str, j.worst_index))
    if j.ratio != j.ratio:  # nothing was compared
        return (sign, j.tensor, j.verdict, "", "", "", "", "")
    values = (f"{j.got:.6g}", f"{j.expected:.6g}", f"{j.ratio:.3g}", f"{j.limit:.3g}")
    return (sign, j.tensor, j.verdict, *values, f"[{at}]" if at else "")


def as_text(cells: Cells, width: int = 0, fold: int = 0) -> list[str]:
    """The lines of a table with columns of equal width.

    Where that is wider than `width`, columns from `fold` on stand below the others.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    if not fold or max(map(len, lines)) <= width:
        return lines
    upper, lower = (
        [row[part] for row in cells] for part in (slice(fold), slice(fold, None))
    )
    pairs = zip(as_text(upper), as_text(lower), strict=True)
    return [line for one, other in pairs for line in (one, f"   {other}".rstrip())]


def as_html(
    cells: Cells, headline: str = "", notes: Iterable[str] = (), folded: str = ""
) -> str:
    """A table with a headline above and notes below; `folded` is code to unfold."""
    parts = [f"<p><b>{html.escape(headline)}</b></p>"] if headline else []
    head, *rows = (_line("td" if i else "th", row) for i, row in enumerate(cells))
    parts += [f"<table><thead>{head}</thead><tbody>", *rows, "</tbody></table>"]
    for note in filter(None, notes):
        said = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(note))
        parts.append(f"<p>{said}</p>")
    if folded:
        parts.append("<details><summary>a script that shows it</summary>")
        parts.append(f"<pre>{html.escape(folded)}</pre></details>")
    return "".join(parts)


def _line(tag: str, cells: Sequence[str]) -> str:
    """A row of HTML; sign and verdict have the verdict's colour."""
    made, colour = [], _COLOURS.get(cells[0], "")
    for cell in cells:
        bold = colour and (cell == cells[0] or cell in SIGNS)
        style = f' style="color:{colour};font-weight:bold"' if bold else ""
        made.append(f"<{tag}{style}>{html.escape(cell)}</{tag}>")
    return f"<tr>{''.join(made)}</tr>"
