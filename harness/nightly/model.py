"""What a night consists of: its parts, their results, and the problems they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.nightly.journal import Journal
from harness.project.paths import ROOT

#: What a part may end as; "broken" is one that raised.
STATES = ("passed", "failed", "broken", "skipped")


#: The share of the budget that a part may fill, for those that search without an end.
SHARE = 0.25


@dataclass(frozen=True)
class Problem:
    """One thing that is not as expected.

    `what` is the tensor, the metric or the like, `told` a line about it. Of two nights
    a problem is the same if all but `told` are.
    """

    part: str
    op: str
    backend: str
    what: str
    told: str

    @property
    def key(self) -> tuple[str, ...]:
        """What makes it the same on another night."""
        return self.part, self.op, self.backend, self.what


@dataclass(frozen=True)
class Result:
    """What a part found: one line, and what is not as expected.

    `skipped` says why nothing was done, `required` which backend must be there and is
    not; `notes` are what a reader should know and nobody has to mend.
    """

    told: str
    problems: Sequence[Problem] = ()
    skipped: str = ""
    notes: Sequence[str] = ()
    required: str = ""


@dataclass(frozen=True)
class Done:
    """A part that has ended, as the journal keeps it."""

    name: str
    state: str
    told: str
    seconds: float
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    lacking: bool = False


@dataclass(frozen=True)
class Night:
    """What the parts are to do, and where.

    `budget` is in seconds, of the whole night; `results` is the folder with the
    history, `folder` the one for everything that is written.
    """

    folder: Path
    journal: Journal
    budget: float
    ops: Sequence[str]
    backends: Sequence[str]
    require: Sequence[str] = ()
    seed: int = 0
    jobs: int = 2
    results: Path = ROOT / "results"
    root: Path = ROOT

    @property
    def share(self) -> float:
        """Seconds for a part that would search without an end."""
        return self.budget * SHARE


Part = Callable[[Night], Result]


@dataclass(frozen=True)
class Report:
    """A night that is over."""

    parts: Sequence[Done]
    new: Sequence[Problem]
    known: Sequence[Problem]
    gone: Sequence[Problem]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """3 where a required backend is missing, 1 if anything is not as expected."""
        if any(done.lacking for done in self.parts):
            return 3
        return 1 if self.new or self.known else 0
