"""A nightly run: its settings, how its parts call commands, and how they are run.

If a part raises, the others still run. After a kill all parts run again, but figures
and comparisons are kept where they were made.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gradwatch.harness.console.streams import ticking
from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import Kind, PartState, Problem, Record, Summary
from gradwatch.harness.project.requested import Required
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.lifetime import with_this_process

#: The share of the budget for each part that would otherwise search without end.
SHARE = 0.25

PATIENCE = 2 * 3600.0  # seconds for a part in its own process: many times what it needs


@dataclass(frozen=True)
class Result:
    """The result of a part: one line, and the problems that it found.

    Where it is `skipped`, or something `required` is missing, the line says why.
    `notes` are for the reader; nobody has to act on them. `run` adds the part's name,
    how it ended, and the seconds that it took.
    """

    line: str
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    skipped: bool = False
    required: bool = False
    name: str = ""
    state: PartState = "passed"
    seconds: float = 0.0


class Ended(NamedTuple):
    """The exit code of a part's process, and the last line that it printed."""

    part: str
    code: int
    line: str

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

    def run(self, name: str, *call: str) -> Ended:
        """Run Python in a process that ends with this one; output: parts/<name>.log."""
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
            why = f"exit code {ended.code}: {ended.line or 'it said nothing'}"
            raise (Required if ended.code == 3 else RuntimeError)(why)
        return documents.read(file, kind), ended


Part = Callable[[Night], Result]


def run(
    night: Night,
    parts: Mapping[str, Part],
    progress: Callable[[Result], None] = lambda done: None,
) -> list[Result]:
    """Run all parts, even if one of them fails, in an empty folder."""
    shutil.rmtree(night.parts, ignore_errors=True)
    finished = list[Result]()
    for name, part in parts.items():
        start = time.monotonic()
        state: PartState = "failed"
        try:
            with ticking(partial("nightly: {}".format, name)):
                result = part(night)
            if not (result.problems or result.required):
                state = "skipped" if result.skipped else "passed"
        except Required as lacking:
            result = Result(str(lacking), required=True)
        except Exception as error:  # noqa: BLE001  # whatever a part raises is reported
            reason, state = in_short(error), "broken"
            result = Result(reason, [Problem(name, "", "", "part", reason)])
        seconds = time.monotonic() - start
        finished.append(replace(result, name=name, state=state, seconds=seconds))
        progress(finished[-1])
    return finished
