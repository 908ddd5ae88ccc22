"""The report of a check: a table for a first look, and every judgement behind it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from gradwatch.harness.diagnosis.entry import as_html, as_text
from gradwatch.harness.judging.judgement import EMPTY, Judgement
from gradwatch.harness.project.verdicts import MEANINGS, PASSING, SIGNS, VERDICTS

COLUMNS = (
    *("", "tensor", "dtype", "verdict", "got", "expected", "error", "allowed"),
    *("radius", "compute", "where"),
)
FOLD = COLUMNS.index("radius")  # a narrow terminal has these below the others

#: The fields of a row in a document, beside its judgement.
RECORDED = ("trial", "how", "dtype", "own", "edge")
#: The shown verdict of a gradient that is zero but for rounding; stored: `vacuous`.
ZERO = "zero within rounding"


@dataclass(frozen=True)
class Row:
    """One judgement, with its trial and precision.

    `how` says what was done beside a forward and a backward, such as "second backward".
    `silent` says that the judgement decides nothing, since zeros would have passed.
    `zero` says that a tensor is zero but for rounding, and that its allowed error is
    small beside its terms. `own` says that the trial has the caller's own shape and
    numbers, `edge` that most functions guarantee nothing for its numbers. `step` says
    where rounding grows so much that the judgement is vacuous.
    """

    trial: str
    dtype: str
    judgement: Judgement
    how: str = ""
    silent: bool = False
    zero: bool = False
    own: bool = False
    edge: bool = False
    step: str = ""

    @property
    def refused(self) -> bool:
        """Whether the candidate raised away from the caller's own numbers."""
        return self.judgement.verdict == "error" and not self.own

    @property
    def ended(self) -> str:
        """The exception or the verdict, in a few words."""
        j = self.judgement
        raised = j.message.removeprefix("raised ")
        return f"raises {raised}" if self.refused else f"{j.tensor} {j.verdict}"

    @property
    def shown(self) -> str:
        """The name of the verdict in a table, where a zero has one of its own."""
        hidden = self.zero and self.judgement.verdict == "vacuous"
        return ZERO if hidden else self.judgement.verdict

    @property
    def story(self) -> str:
        """The judgement's message, followed by `how`."""
        return self.judgement.message + (f" ({self.how})" if self.how else "")

    @property
    def place(self) -> str:
        """The trial and its precision."""
        return f"{self.trial} ({self.dtype})"

    @property
    def where(self) -> str:
        """The trial, followed by `how`."""
        return f"{self.trial}, {self.how}" if self.how else self.trial

    @property
    def rank(self) -> tuple[bool, int, float]:
        """A sort key, larger for worse; vacuous judgements come last."""
        j = self.judgement
        ratio = j.ratio / j.limit if j.limit and j.ratio == j.ratio else 0.0
        hidden = j.verdict == "vacuous"
        spoken = -1 - self.silent if hidden else VERDICTS.index(j.verdict)
        return not j.passes, spoken, ratio


@dataclass(frozen=True, repr=False)
class Report:
    """The judgements of a check; iterating gives them, worst first.

    Attributes:
        reference, candidate: Names, as a person would write them.
        device: The candidate's device.
        rows: Every judgement with its trial.
        notes: A line for each omission, and each trial that gave other bits again.
        seconds: The duration of the check.
        edges_fail: Whether a wrong tensor at the edges fails the check.
        refusals_fail: Whether an exception away from the caller's own numbers does.
    """

    reference: str
    candidate: str
    device: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    script: Callable[[Sequence[Row]], str] = field(default=lambda _: "", compare=False)
    edges_fail: bool = False
    refusals_fail: bool = False

    def __iter__(self) -> Iterator[Judgement]:
        ranked = sorted(self.rows, key=lambda row: row.rank, reverse=True)
        return (row.judgement for row in ranked)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The judgements that prove a mistake in the caller's domain."""
        return tuple(r for r in self._deciding if not r.judgement.passes)

    @property
    def edges(self) -> tuple[Row, ...]:
        """The failures and refusals at the edges: empty, inf, nan, 1e7 and the like."""
        return tuple(r for r in self.rows if r.edge and not r.judgement.passes)

    @property
    def refused(self) -> tuple[str, ...]:
        """Trials of the domain, not the caller's own, in which the candidate raised."""
        places = (r.place for r in self.rows if r.refused and not r.edge)
        return tuple(dict.fromkeys(places))

    @property
    def _domain(self) -> list[Row]:
        """The rows, without the edges where these do not decide."""
        return [r for r in self.rows if self.edges_fail or not r.edge]

    @property
    def _deciding(self) -> list[Row]:
        """The rows of the domain, without the refusals where these do not decide."""
        return [r for r in self._domain if self.refusals_fail or not r.refused]

    @property
    def _heaps(self) -> dict[tuple[str, str], list[Row]]:
        """The rows that decide, by tensor and precision."""
        return grouped(((r.judgement.tensor, r.dtype), r) for r in self._deciding)

    @property
    def silent(self) -> tuple[tuple[str, str], ...]:
        """Tensors that could not be judged at the caller's own numbers."""
        heaps = self._heaps.items()
        return tuple(k for k, rows in heaps if all(r.silent or not r.own for r in rows))

    @property
    def passes(self) -> bool:
        """Whether everything was judged, and nothing is wrong."""
        return self.judged and not self.failures and not self.silent

    @property
    def judged(self) -> bool:
        """Whether any tensor was judged: PyTorch may have refused them all."""
        return any(r.judgement.verdict != "unsupported" for r in self._domain)

    def assert_ok(self) -> None:
        """Raise AssertionError, with the table, unless it passes."""
        if not self.passes:
            raise AssertionError(str(self))

    def repro(self) -> str:
        """A script that shows the worst failure and needs NumPy and its framework.

        It holds the smallest input at which the candidate still fails, and exits 1
        while it does. Empty where nothing fails, at the edges neither.
        """
        shown = self.failures or self.edges
        return self.script(shown) if shown else ""

    def document(self) -> dict[str, Any]:
        """The report in builtin types, without the environment."""
        return {
            "reference": self.reference,
            "candidate": self.candidate,
            "device": self.device,
            "passes": self.passes,
            "failures": len(self.failures),
            "edges": len(self.edges),
            "refused": list(self.refused),
            "silent": [list(key) for key in self.silent],
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "records": [
                {n: getattr(row, n) for n in RECORDED} | asdict(row.judgement)
                for row in self.rows
            ],
        }

    def kept(self) -> dict[str, Any]:
        """The fields of a `CheckRecord`."""
        worst = max(self.failures, key=lambda row: row.rank, default=None)
        return {
            "name": f"{self.candidate} against {self.reference}",
            "passes": self.passes,
            "told": self.headline,
            "message": worst.story if worst else "",
            "device": self.device,
            "tensors": len(self.rows),
        }

    @property
    def headline(self) -> str:
        """The functions and the outcome of the check, in a line."""
        trials = len({r.place for r in self._domain})
        ended, s = "passes" if self.passes else "FAILS", "s" * (trials != 1)
        if self.failures:
            wrong, every = (
                len({(r.judgement.tensor, r.dtype) for r in rows if not r.refused})
                for rows in (self.failures, self._domain)
            )
            ended += f", {wrong} of {every} tensors wrong"
        elif not self.judged:
            ended += ", nothing could be judged"
        elif self.silent:
            ended += ", nothing could be said of " + ", ".join(
                f"{tensor} in {dtype}" for tensor, dtype in self.silent
            )
        if self.refused:
            ended += f", raises in {len(self.refused)} of the trials"
        return (
            f"{self.candidate} against {self.reference}: {ended}"
            f" ({trials} trial{s} on {self.device}, {self.seconds:.1f} s)"
        )

    def __str__(self) -> str:
        return f"{self.headline}\n{self.text()}"

    def text(self, width: int = 0) -> str:
        """The report without headline; a table wider than a given width is folded."""
        table = as_text(self._cells(), width, FOLD if width else 0)
        lines = [*filter(None, [self._at_the_edges()]), "", *table, *self._footer()]
        return "\n".join(lines).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        notes = (self._at_the_edges(), *self._footer())
        return as_html(self._cells(), self.headline, notes, self.repro())

    def _at_the_edges(self) -> str:
        """The failures at the edges in one line, tensor by tensor."""
        if not any(r.edge for r in self.rows):
            return ""
        found = joined((row.ended, row.trial) for row in self.edges)
        parts = (f"{ended} in {trials}" for ended, trials in found.items())
        return "at the edges: " + ("; ".join(parts) or "right")

    def _footer(self) -> list[str]:
        heaps = _by_line(self.failures).values()
        worst = sorted(map(_shown, heaps), key=lambda row: row.rank, reverse=True)
        lines = [row.story for row in worst[:3]]
        lines += self._diagnoses()
        rows = map(_shown, _by_line(self._deciding).values())
        lost = [r for r in rows if r.judgement.verdict == "imprecise"]
        lines += [r.story for r in lost if not math.isfinite(r.judgement.got)][:3]
        if not self.judged:
            lines = [row.judgement.message for row in self.rows[:1]]
        lines += self._hidden()
        shown = dict.fromkeys(row[COLUMNS.index("verdict")] for row in self._cells())
        says = {*MEANINGS} & {*PASSING}  # of others, the story says it
        lines += [f"{v}: {MEANINGS[v]}" for v in shown if v in says]
        always = any(r.judgement.verdict == "error" for r in self.failures)
        refused = [r for r in self.rows if r.refused and not (r.edge or always)]
        notes = [
            f"note: the candidate {ended}: {trials}"
            for ended, trials in joined((r.ended, r.trial) for r in refused).items()
        ]
        away = [*dict.fromkeys(r.trial for r in self.failures if not self.silent)]
        if away and not any(r.own for r in self.failures):
            said = f"what can never occur is left out by skip={away}"
            notes.append(f"note: right at your own shape and numbers; {said}")
        notes += [f"note: {note}" for note in self.notes]
        if self.judged and all(EMPTY in r.judgement.message for r in self._domain):
            notes.append("note: no element was judged, only shapes and dtypes")
        return ["", *lines, *notes] if lines or notes else []

    def _diagnoses(self) -> Iterator[str]:
        """The diagnosis of each wrong tensor, in a line; the same one only once."""
        found = dict[tuple[str, str], str]()
        for row in self.failures:
            said = f"diagnosis: {row.judgement.diagnosis} ({row.place})"
            if row.judgement.diagnosis:
                found.setdefault((row.judgement.tensor, row.dtype), said)
        yield from dict.fromkeys(found.values())

    def _hidden(self) -> Iterator[str]:
        """A line for each reason why rounding hides tensors at the caller's numbers."""
        found = list[tuple[tuple[str, str, str, str], str]]()
        for (tensor, dtype), rows in self._heaps.items():
            own = [r for r in rows if r.own]
            if own and all(r.shown == "vacuous" for r in own):
                much = "nothing" if all(r.silent for r in own) else "little"
                why = own[0].step or own[0].judgement.message
                found.append(((own[0].trial, much, dtype, why), tensor))
        for (trial, much, dtype, why), tensors in joined(found).items():
            yield f"{trial}: {much} could be said of {tensors} in {dtype}; {why}"

    def _cells(self) -> list[tuple[str, ...]]:
        """The header, then a line for each tensor and precision: its worst trial."""
        heaps = _by_line(self._deciding)
        shown = {key: _shown(rows) for key, rows in heaps.items()}
        ordered = sorted(shown, key=lambda key: shown[key].rank, reverse=True)
        of = Counter(dtype for dtype, _ in {(r.dtype, r.trial) for r in self._domain})
        return [COLUMNS, *(_cells(shown[k], heaps[k], of[k[1]]) for k in ordered)]


Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The second members of pairs, by the first."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def joined(pairs: Iterable[tuple[Key, str]]) -> dict[Key, str]:
    """The second members by the first, once each, joined by commas."""
    return {k: ", ".join(dict.fromkeys(v)) for k, v in grouped(pairs).items()}


def _by_line(rows: Sequence[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """The rows of each line: a tensor, or a second sweep if only that is wrong."""
    plain = {
        (r.judgement.tensor, r.dtype) for r in rows if not (r.how or r.judgement.passes)
    }

    def line(row: Row) -> tuple[str, str, str]:
        key = row.judgement.tensor, row.dtype
        apart = not row.judgement.passes and key not in plain
        return *key, row.how if apart else ""

    return grouped((line(row), row) for row in rows)


def _shown(rows: Sequence[Row]) -> Row:
    """The first failing row, as trials begin with the plainest; else the worst row."""
    failing = (row for row in rows if not row.judgement.passes)
    return next(failing, None) or max(rows, key=lambda row: row.rank)


def _cells(row: Row, rows: Sequence[Row], trials: int) -> tuple[str, ...]:
    """The cells of a line; `trials` is the number of all in its precision."""
    j = row.judgement
    failing = len({r.trial for r in rows if not r.judgement.passes})
    judged = len({r.trial for r in rows if not r.silent})
    where = row.where if j.passes else f"{row.where}; {failing} of {trials} trials"
    if judged < len({r.trial for r in rows}):
        where += f"; judged in {judged} of {trials}"
    at = f"[{', '.join(map(str, j.worst_index))}] in " if j.worst_index else ""
    over = "over " if j.radius_kind == "least" else ""  # more is allowed
    compared = j.ratio == j.ratio and (j.got == j.got or j.expected == j.expected)
    error, most = f"{abs(j.got - j.expected):.2g}", f"{over}{j.limit * j.radius:.2g}"
    numbers = f"{j.got:.6g}", f"{j.expected:.6g}", error, most, j.radius_kind
    names = {r.judgement.compute for r in rows if not r.silent}
    compute = next((name for name in _NARROWEST_FIRST if name in names), "")
    said = SIGNS[j.verdict][0], j.tensor, row.dtype, row.shown
    return (*said, *(numbers if compared else [""] * 5), compute, at + where)


#: Precisions; a line shows the first that any trial needed, as that allows them all.
_NARROWEST_FIRST = "bfloat16", "float16", "mixed", "tf32", "float32", "float64"
