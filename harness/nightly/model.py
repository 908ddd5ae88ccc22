"""Types of a nightly run: its parts, their results, and the problems they found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.nightly.journal import Journal
from harness.project.paths import ROOT

#: How a part can end; "broken" means that it raised an exception.
STATES = ("passed", "failed", "broken", "skipped")


#: The share of the budget for each part that would otherwise search without end.
SHARE = 0.25


@dataclass(frozen=True)
class Problem:
    """One thing that is not as expected.

    `what` names the tensor, the metric or the like; `told` is one line of details.
    Two nights have the same problem if all fields but `told` are equal.
    """

    part: str
    op: str
    backend: str
    what: str
    told: str

    @property
    def key(self) -> tuple[str, ...]:
        """Identifies the problem in another night's report."""
        return self.part, self.op, self.backend, self.what


@dataclass(frozen=True)
class Result:
    """The result of a part: one line, and the problems that it found.

    `skipped` is the reason why the part did nothing. `required` names a required
    backend that is missing. `notes` are for the reader; nobody has to act on them.
    """

    told: str
    problems: Sequence[Problem] = ()
    skipped: str = ""
    notes: Sequence[str] = ()
    required: str = ""


@dataclass(frozen=True)
class Done:
    """A finished part, as the journal keeps it."""

    name: str
    state: str
    told: str
    seconds: float
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    lacking: bool = False


@dataclass(frozen=True)
class Night:
    """The settings of a nightly run.

    `budget` is in seconds, for the whole run; `results` is the folder with the history;
    `folder` is where all output goes.
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
        """Seconds for a part that would otherwise search without end."""
        return self.budget * SHARE


Part = Callable[[Night], Result]


@dataclass(frozen=True)
class Report:
    """A finished nightly run; `gone` are problems of the previous run that ended."""

    parts: Sequence[Done]
    new: Sequence[Problem]
    known: Sequence[Problem]
    gone: Sequence[Problem]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """3 if a required backend is missing, 1 if anything is not as expected."""
        if any(done.lacking for done in self.parts):
            return 3
        return 1 if self.new or self.known else 0
