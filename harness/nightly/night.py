"""A nightly run: its settings, how its parts call commands, and their results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import (
    Environment,
    Kind,
    PartState,
    Problem,
    Record,
    Summary,
)
from gradwatch.harness.project.requested import Required
from gradwatch.harness.workers.lifetime import with_this_process

#: The share of the budget for each part that would otherwise search without end.
SHARE = 0.25

PATIENCE = 2 * 3600.0  # seconds for a part in its own process: many times what it needs


@dataclass(frozen=True)
class Result:
    """The result of a part: one line, and the problems that it found.

    `skipped` is the reason why the part did nothing. `required` names a required
    backend that is missing. `notes` are for the reader; nobody has to act on them. The
    runner adds the part's name, how it ended, and the seconds that it took.
    """

    line: str
    problems: Sequence[Problem] = ()
    skipped: str = ""
    notes: Sequence[str] = ()
    required: str = ""
    name: str = ""
    state: PartState = "passed"
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """How the part ended, in a line."""
        return self.skipped or self.required or self.line


@dataclass(frozen=True)
class Ended:
    """The exit code of a part's process, and the last line that it printed."""

    part: str
    code: int
    line: str

    def __str__(self) -> str:
        """Both in a line."""
        return f"exit code {self.code}: {self.line or 'it said nothing'}"

    @property
    def problems(self) -> list[Problem]:
        """That it failed, if it did."""
        what = f"exit code {self.code}"
        return [Problem(self.part, "", "", what, self.line)] if self.code else []


@dataclass(frozen=True)
class Night:
    """The settings of a nightly run.

    `budget` is in seconds, for the whole run; `results` is the folder with the history;
    `folder` is where all output goes.
    """

    folder: Path
    budget: float
    ops: Sequence[str]
    backends: Sequence[str]
    require: Sequence[str] = ()
    seed: int = 0
    jobs: int = 2
    results: Path = ROOT / "results"
    root: Path = ROOT

    @property
    def parts(self) -> Path:
        """The folder of what the parts write."""
        return self.folder / "parts"

    def piece(self, name: str) -> Path:
        """The file of a document of that name, whether it exists or not."""
        return self.parts / f"{name}.json"

    @property
    def share(self) -> float:
        """Seconds for a part that would otherwise search without end."""
        return self.budget * SHARE

    def run(self, name: str, *call: str) -> Ended:
        """Run Python in a process that ends with this one.

        Its output goes to parts/<name>.log.
        """
        self.parts.mkdir(parents=True, exist_ok=True)
        log = self.parts / f"{name}.log"
        with log.open("w", encoding="utf-8") as said:
            done = subprocess.run(
                [sys.executable, *call],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
                preexec_fn=with_this_process(),
            )
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return Ended(name, done.returncode, lines[-1][:300] if lines else "")

    def document(
        self, name: str, kind: Kind[Record, Summary], *call: str
    ) -> tuple[Document[Record, Summary], Ended]:
        """Run one of our commands: its document, and how it ended.

        Raises:
            Required: There is none, as what is required is missing.
            RuntimeError: There is none.
        """
        file = self.piece(name)
        file.unlink(missing_ok=True)  # one that ends early must not pass by an old one
        ended = self.run(name, "-m", "gradwatch", *call, "--json", str(file))
        if not file.exists():
            raise (Required if ended.code == 3 else RuntimeError)(str(ended))
        return documents.read(file, kind), ended


Part = Callable[[Night], Result]


@dataclass(frozen=True)
class Report:
    """A finished nightly run, and the problems of the one before.

    `notes` say what of that one's document cannot be read.
    """

    parts: Sequence[Result]
    before: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    environment: Environment = field(default_factory=documents.surroundings)

    @property
    def problems(self) -> list[Problem]:
        """Those of all parts, the new ones first."""
        found = [problem for done in self.parts for problem in done.problems]
        return sorted(found, key=lambda problem: not self.is_new(problem))

    def is_new(self, problem: Problem) -> bool:
        """Whether the night before did not have it."""
        return problem.key not in {one.key for one in self.before}

    @property
    def new(self) -> list[Problem]:
        """The problems that are."""
        return [problem for problem in self.problems if self.is_new(problem)]

    @property
    def gone(self) -> list[Problem]:
        """The problems of the night before that ended."""
        now = {problem.key for problem in self.problems}
        return [problem for problem in self.before if problem.key not in now]

    @property
    def exit_code(self) -> int:
        """3 if a required backend is missing, 1 if anything is not as expected."""
        if any(done.required for done in self.parts):
            return 3
        return 1 if self.problems else 0
