"""Runs the parts of a nightly run one after another.

A part is a function that takes a `Night` and returns a `Result`; they are in
harness/nightly/parts.py. If a part raises, the others still run. After a kill all parts
run again, but figures and comparisons are kept where they were made.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from gradwatch.harness.agreement.output import Judged
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.nightly.night import Night, Part, Report, Result
from gradwatch.harness.nightly.report import junit, markdown
from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.records import (
    AGREE,
    NIGHTLY,
    NightlySummary,
    PartRecord,
    PartState,
    Problem,
)
from gradwatch.harness.project.requested import Required
from gradwatch.harness.workers.evaluate import in_short


def run(
    night: Night,
    parts: Mapping[str, Part],
    progress: Callable[[Result], None] = lambda done: None,
) -> list[Result]:
    """Run all parts, even if one of them fails, in an empty folder."""
    shutil.rmtree(night.parts, ignore_errors=True)
    finished = []
    for name, part in parts.items():
        finished.append(_attempt(name, part, night))
        progress(finished[-1])
    return finished


def _attempt(name: str, part: Part, night: Night) -> Result:
    state: PartState
    start = time.monotonic()
    try:
        with ticking(lambda: f"nightly: {name}"):
            result = part(night)
        bad = result.problems or result.required
        state = "skipped" if result.skipped else "failed" if bad else "passed"
    except Required as lacking:
        result, state = Result("", required=str(lacking)), "failed"
    except Exception as error:  # noqa: BLE001  # whatever a part raises is reported
        reason = in_short(error)
        result = Result(reason, [Problem(name, "", "", "part", reason)])
        state = "broken"
    return replace(result, name=name, state=state, seconds=time.monotonic() - start)


def problems_of(file: Path) -> tuple[list[Problem], list[str]]:
    """The problems in a previous night's document, and a line if it is damaged.

    Both are empty if there is no such file. What cannot be compared counts as new.
    """
    if not file.exists():
        return [], []
    try:
        odd = list[Unreadable]()
        previous = documents.read(file, NIGHTLY, odd)
    except Unreadable as error:
        return [], [f"{error}: nothing to compare with, all counts as new"]
    return list(previous.records), [str(one) for one in odd]


def write(report: Report, night: Night) -> None:
    """Write the document, the XML and the summary; each file is replaced atomically."""
    rows = [structs.replace(p, new=report.is_new(p)) for p in report.problems]
    summary = NightlySummary(
        parts=[PartRecord(d.name, d.state, d.outcome, d.seconds) for d in report.parts],
        new=len(report.new),
        known=len(rows) - len(report.new),
        gone=report.gone,
    )
    verdicts: Judged | None = None
    with contextlib.suppress(Unreadable):  # that part was not done
        verdicts = documents.read(night.piece("agree"), AGREE)
    documents.replace_file(night.folder / "junit.xml", junit(report, verdicts))
    documents.replace_file(night.folder / "summary.md", markdown(report))
    documents.write(
        documents.document(rows, summary, report.environment),
        night.folder / "nightly.json",
    )
