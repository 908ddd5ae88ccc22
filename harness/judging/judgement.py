"""What is said of one tensor: the verdict, and the numbers behind it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.harness.project.verdicts import PASSING, SIGNS

#: The convention of a tensor that is right for flushed inputs alone.
FLUSHED = "flushed"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one tensor.

    Attributes:
        tensor: "dx" for the gradient of input x, or the name of an output or state.
        verdict: One of `gradwatch.harness.project.verdicts.VERDICTS`.
        ratio: Largest error over rounding radius; nan where nothing was compared.
        limit: The ratio up to which an error is rounding.
        vacuous: Share of the elements (0 to 1) of which rounding leaves too little for
            the comparison to say anything.
        worst_index: Where the ratio is largest; () for a scalar or nothing compared.
        got, expected, radius: The values there; of a tensor as a whole its distance
            from the right one, 0, and what one rounding at each step does to it.
        radius_kind: "bound" or "spread": which of the two radii that one is; "norm" or
            "projection" of a tensor as a whole (spread.py); "least" of a large right
            tensor, whose ratio is then more than that of the other two, and of which
            less than half is vacuous: `vacuous` is 0 (acceptance/large.py).
        compute: The widest precision of intermediate values with which the tensor is
            consistent: "float32" or "mixed" (steps rounded to 16 bits, sums in float32)
            for one of 16 bits; empty where it is consistent with none.
        convention: How ties are broken ("first", "last", "even", "shared", or "mixed"
            where it is not the same in every row), where they are.
        message: One sentence that tells all of this.
        diagnosis: The mistake that gives what came back; empty where none is known.
    """

    tensor: str
    verdict: str
    ratio: float = float("nan")
    limit: float = float("nan")
    vacuous: float = 0.0
    worst_index: tuple[int, ...] = ()
    got: float = float("nan")
    expected: float = float("nan")
    radius: float = float("nan")
    radius_kind: str = "bound"
    compute: str = ""
    convention: str = ""
    message: str = ""
    diagnosis: str = ""

    @property
    def passes(self) -> bool:
        """Whether the verdict is none that a correct implementation could not earn."""
        return self.verdict in PASSING

    @property
    def story(self) -> str:
        """The message, then the diagnosis."""
        return "; ".join(filter(None, (self.message, self.diagnosis)))

    def changed(self, **fields: Any) -> Judgement:
        """The same but for some fields; `dataclasses.replace` takes twice as long."""
        return Judgement(**{**vars(self), **fields})


class Judgements(tuple[Judgement, ...]):
    """What `judge` returns: a tuple that shows itself as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "\n".join(as_text(self._cells()))

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


# Tables of judgements: as text at a prompt, as HTML in a notebook -----------------

_GOOD, _BAD, _OTHER = "#2e8b57", "#d4351c", "#a8730e"  # readable on white and on black
_COLOURS = {
    sign: _OTHER if name in PASSING else _BAD for name, (sign, _) in SIGNS.items()
} | {SIGNS["agree"][0]: _GOOD}

Cells = Sequence[Sequence[str]]  # the header first


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
    lines = [_line("td" if i else "th", row) for i, row in enumerate(cells)]
    parts.append(f"<table><thead>{lines[0]}</thead><tbody>")
    parts += [*lines[1:], "</tbody></table>"]
    for note in filter(None, notes):
        said = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(note))
        parts.append(f"<p>{said}</p>")
    if folded:
        code = f"<pre>{html.escape(folded)}</pre>"
        parts.append(f"<details><summary>a script that shows it</summary>{code}")
        parts.append("</details>")
    return "".join(parts)


def _line(tag: str, cells: Sequence[str]) -> str:
    """A row; sign and verdict have the verdict's colour."""
    made, colour = [], _COLOURS.get(cells[0], "")
    for cell in cells:
        bold = colour and (cell == cells[0] or cell in SIGNS)
        style = f' style="color:{colour};font-weight:bold"' if bold else ""
        made.append(f"<{tag}{style}>{html.escape(cell)}</{tag}>")
    return f"<tr>{''.join(made)}</tr>"
