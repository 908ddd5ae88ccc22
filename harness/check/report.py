"""What a check found: a table for a first look, and every judgement behind it."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.project.verdicts import SIGNS, VERDICTS

COLUMNS = (
    *("", "tensor", "dtype", "verdict", "got", "expected", "error", "allowed"),
    *("radius", "compute", "where"),
)


@dataclass(frozen=True)
class Row:
    """One judgement, in which trial and in which precision it was made.

    `how` says what was done beside a forward and a backward, such as "second backward".
    `silent` says that it can neither praise nor accuse, since zeros would have passed.
    `zero` says of a gradient that it is zero but for rounding, and that what it may be
    is little beside the other gradients.
    """

    trial: str
    dtype: str
    judgement: Judgement
    how: str = ""
    silent: bool = False
    zero: bool = False

    @property
    def where(self) -> str:
        """The trial, and what was done in it."""
        return f"{self.trial}, {self.how}" if self.how else self.trial

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Larger is worse; what says nothing stands behind what does."""
        j = self.judgement
        ratio = j.ratio / j.limit if j.limit and j.ratio == j.ratio else 0.0
        hidden = j.verdict == "vacuous"
        spoken = -1 - self.silent if hidden else VERDICTS.index(j.verdict)
        return not j.passes, spoken, ratio


@dataclass(frozen=True)
class Report:
    """The judgements of a check; iterating gives them, worst first.

    Attributes:
        reference, candidate: Names, as a person would write them.
        device: Where the candidate ran.
        rows: Every judgement with its trial.
        notes: What was left out or could not be repeated, a line each.
        seconds: What it took.
    """

    reference: str
    candidate: str
    device: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    script: Callable[[], str] = field(default=lambda: "", repr=False, compare=False)

    def __iter__(self) -> Iterator[Judgement]:
        ranked = sorted(self.rows, key=lambda row: row.rank, reverse=True)
        return (row.judgement for row in ranked)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        """What a correct candidate could not have earned."""
        return tuple(row for row in self.rows if not row.judgement.passes)

    @property
    def silent(self) -> tuple[tuple[str, str], ...]:
        """Tensors, with their dtype, of which no trial could say anything."""
        heaps = _by_tensor(self.rows)
        return tuple(key for key, rows in heaps.items() if all(r.silent for r in rows))

    @property
    def passes(self) -> bool:
        """Whether everything was judged, and nothing is wrong."""
        return self.judged and not self.failures and not self.silent

    @property
    def judged(self) -> bool:
        """Whether anything was: what PyTorch refuses leaves nothing to judge."""
        return any(row.judgement.verdict != "unsupported" for row in self.rows)

    def assert_ok(self) -> None:
        """Raise unless it passes.

        Raises:
            AssertionError: With the table.
        """
        if not self.passes:
            raise AssertionError(str(self))

    def repro(self) -> str:
        """A script that shows the worst failure and needs only PyTorch and NumPy.

        It holds the smallest input at which the candidate still fails, and exits 1
        while it does. Empty where nothing fails.
        """
        return self.script() if self.failures else ""

    def document(self) -> dict[str, Any]:
        """All of it in builtin types, without the environment."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "device": self.device,
            "passes": self.passes,
            "failures": len(self.failures),
            "silent": [list(key) for key in self.silent],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "records": [
                {
                    "trial": r.trial,
                    "how": r.how,
                    "dtype": r.dtype,
                    **asdict(r.judgement),
                }
                for r in self.rows
            ],
        }

    @property
    def headline(self) -> str:
        """One line: what was checked, and how it ended."""
        trials = len({(row.trial, row.dtype) for row in self.rows})
        ended = "passes" if self.passes else "FAILS"
        if self.failures:
            wrong = len(_by_tensor(self.failures))
            ended += f", {wrong} of {len(_by_tensor(self.rows))} tensors wrong"
        elif not self.judged:
            ended += ", nothing could be judged"
        elif self.silent:
            ended += ", nothing could be said of " + ", ".join(
                f"{tensor} in {dtype}" for tensor, dtype in self.silent
            )
        return (
            f"{self.candidate} against {self.reference}: {ended}"
            f" ({trials} trials on {self.device}, {self.seconds:.1f} s)"
        )

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n".join([self.headline, "", *lines, *self._footer()]).rstrip()

    def _footer(self) -> list[str]:
        heaps = _by_tensor(self.failures).values()
        worst = sorted(
            map(_shown, heaps),
            key=lambda row: row.rank,
            reverse=True,
        )
        lines = [row.judgement.message for row in worst[:3]]
        if not self.judged:
            lines = [row.judgement.message for row in self.rows[:1]]
        notes = [f"note: {note}" for note in self.notes]
        return ["", *lines, *notes] if lines or notes else []

    def _cells(self) -> list[tuple[str, ...]]:
        """The header, then a line for each tensor and precision: its worst trial."""
        heaps = _by_tensor(self.rows)
        shown = {key: _shown(rows) for key, rows in heaps.items()}
        ordered = sorted(shown, key=lambda key: shown[key].rank, reverse=True)
        return [COLUMNS, *(_cells(shown[key], heaps[key]) for key in ordered)]

    def _repr_html_(self) -> str:
        header, *body = self._cells()
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        lines = (
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in body
        )
        notes = "".join(
            f"<p>{html.escape(line)}</p>" for line in self._footer() if line
        )
        return (
            f"<p><b>{html.escape(self.headline)}</b></p><table><thead><tr>{head}</tr>"
            f"</thead><tbody>{''.join(lines)}</tbody></table>{notes}"
        )


def _by_tensor(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    heaps: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        heaps.setdefault((row.judgement.tensor, row.dtype), []).append(row)
    return heaps


def _shown(rows: Sequence[Row]) -> Row:
    """Of a tensor's rows the first that fails: trials begin with the plainest.

    Where none fails, the one nearest to its limit.
    """
    failing = (row for row in rows if not row.judgement.passes)
    return next(failing, None) or max(rows, key=lambda row: row.rank)


def _cells(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    j = row.judgement
    failing = len({r.trial for r in rows if not r.judgement.passes})
    trials = len({r.trial for r in rows})
    where = row.where if j.passes else f"{row.where}; {failing} of {trials} trials"
    at = f"[{', '.join(map(str, j.worst_index))}] in " if j.worst_index else ""
    compared = j.ratio == j.ratio
    return (
        SIGNS[j.verdict][0],
        j.tensor,
        row.dtype,
        "zero" if row.zero else j.verdict,
        _number(j.got, compared),
        _number(j.expected, compared),
        f"{abs(j.got - j.expected):.2g}" if compared else "",
        _allowed(j) if compared else "",
        j.radius_kind if compared else "",
        _compute(rows),
        at + where,
    )


def _allowed(j: Judgement) -> str:
    """How far off it may be; of the least radius it is known that more is allowed."""
    more = "over " if j.radius_kind == "least" else ""
    return f"{more}{j.limit * j.radius:.2g}"


def _number(value: float, compared: bool) -> str:
    return f"{value:.6g}" if compared else ""


def _compute(rows: Sequence[Row]) -> str:
    """The widest precision of intermediate values that every trial allows."""
    names = [r.judgement.compute for r in rows if not r.silent]
    return min(filter(None, names), key=_digits, default="")


_DIGITS: Mapping[str, int] = {
    "bfloat16": 8, "float16": 11, "mixed": 12, "tf32": 13, "float32": 24, "float64": 53,
}  # fmt: skip


def _digits(name: str) -> int:
    return _DIGITS.get(name, 53)
