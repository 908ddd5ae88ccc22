"""The report of a nightly run: Markdown for a CI job's page, JUnit XML for viewers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from junitparser import Error, Failure, Skipped, TestCase, TestSuite
from msgspec import structs

from gradwatch.harness.agreement import output
from gradwatch.harness.agreement.output import Judged
from gradwatch.harness.nightly.night import Night, Result
from gradwatch.harness.project import documents, records
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.markdown import cell, legal_xml

#: The most problems listed in full; nobody reads longer lists.
SHOWN = 10
LONGEST = 300  # characters of one problem

_SIGNS = {"passed": "✓", "failed": "✗", "broken": "✗", "skipped": "–"}


@dataclass(frozen=True)
class Report:
    """A finished nightly run, and the problems of the one before.

    `notes` say why the document of that run cannot be read.
    """

    parts: Sequence[Result]
    before: Sequence[records.Problem] = ()
    notes: Sequence[str] = ()
    environment: records.Environment = field(default_factory=documents.surroundings)

    @cached_property
    def problems(self) -> list[records.Problem]:
        """The problems of all parts; those that the night before lacked come first."""
        before = {one.key for one in self.before}
        found = [problem for done in self.parts for problem in done.problems]
        found = [structs.replace(p, new=p.key not in before) for p in found]
        return sorted(found, key=lambda problem: not problem.new)

    @property
    def new(self) -> list[records.Problem]:
        """The problems that the night before did not have."""
        return [problem for problem in self.problems if problem.new]

    @property
    def gone(self) -> list[records.Problem]:
        """The problems that only the night before had."""
        now = {problem.key for problem in self.problems}
        return [problem for problem in self.before if problem.key not in now]

    @property
    def exit_code(self) -> int:
        """3 if a required backend is missing, 1 if anything is not as expected."""
        if any(done.required for done in self.parts):
            return 3
        return 1 if self.problems else 0


def problems_of(file: Path) -> tuple[list[records.Problem], list[str]]:
    """The problems in a previous night's document, and a line if it is damaged."""
    found, troubles = documents.kept(file, records.NIGHTLY)
    return found, [f"{one}: nothing to compare with, all is new" for one in troubles]


def write(report: Report, night: Night) -> None:
    """Write the document, the XML and the summary; each file is replaced atomically."""
    summary = records.NightlySummary(
        parts=[
            records.PartRecord(d.name, d.state, d.line, d.seconds) for d in report.parts
        ],
        new=len(report.new),
        known=len(report.problems) - len(report.new),
        gone=report.gone,
    )
    verdicts: Judged | None = None
    with contextlib.suppress(Unreadable):  # that part was not done
        verdicts = documents.read(night.piece("agree"), records.AGREE)
    documents.replace_file(night.folder / "junit.xml", junit(report, verdicts))
    documents.replace_file(night.folder / "summary.md", markdown(report))
    content = documents.document(report.problems, summary, report.environment)
    documents.write(content, night.folder / "nightly.json")


def shown(done: Result) -> str:
    """The state, result and seconds of a part in a line."""
    return f"{_SIGNS[done.state]} {done.name}: {done.line} ({done.seconds:.0f} s)"


# Markdown -----------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The summary: new problems, known ones, then a line for each part."""
    lines = [_headline(report), ""]
    for title, problems in (
        ("New", report.new),
        ("Known since an earlier night", report.problems[len(report.new) :]),
        ("Gone since the last night", report.gone),
    ):
        if problems:
            lines += [f"**{title}: {len(problems)}**", "", *_listed(problems), ""]
    lines += ["| part | result | seconds |", "|---|---|--:|"]
    for d in report.parts:
        ended = f"{_SIGNS[d.state]} {d.state}: {cell(d.line)}"
        lines.append(f"| {d.name} | {ended} | {d.seconds:.0f} |")
    notes = [*report.notes, *(note for done in report.parts for note in done.notes)]
    lines += ["", *(f"- {cell(note)}" for note in notes)] if notes else []
    about = report.environment
    changed = "with changed files" if about.dirty else ""
    commit = f"commit {about.commit[:10] or 'unknown'}"
    foot = ", ".join(filter(None, (commit, changed, about.machine, about.date)))
    return "\n".join([*lines, "", f"<sub>{foot}</sub>"]) + "\n"


def _headline(report: Report) -> str:
    """The first line; many readers see no other."""
    problems = report.problems
    lacking = [f"{d.name}: {cell(d.line)}" for d in report.parts if d.required]
    if lacking and not problems:  # a green line must mean that all was judged
        return f"**Not judged: {'; '.join(lacking)}**"
    if not problems:
        shown = ("agree", "watch")
        lines = [d.line for d in report.parts if d.name in shown and d.line]
        return f"**All as expected**: {'; '.join(lines) or 'no part found a problem'}"
    since = (p for p in report.new or problems if p.what.startswith("wrong since"))
    first = next(since, problems[0])  # the one with a commit, if there is one
    place = " on ".join(part for part in (first.op, first.backend) if part)
    more = len(problems) - 1
    kind = "New" if report.new else "Still"
    headline = f"**{kind}: {place or first.part}: {cell(first.what)}**"
    return headline + (f" and {more} more" if more else "")


def _listed(problems: Sequence[records.Problem]) -> Iterator[str]:
    for problem in problems[:SHOWN]:
        place = " on ".join(part for part in (problem.op, problem.backend) if part)
        name = f"**{place}** " if place else ""
        detail = cell(problem.told)
        detail = detail if len(detail) <= LONGEST else f"{detail[:LONGEST]}…"
        yield f"- {name}`{problem.part}`: {cell(problem.what)}: {detail}"
    if len(problems) > SHOWN:
        yield f"- and {len(problems) - SHOWN} more (nightly.json has them)"


# JUnit XML ----------------------------------------------------------------------


def junit(report: Report, agreement: Judged | None) -> str:
    """The suite of `agree`, and another with a case for each part and its problems."""
    parts = TestSuite("parts")
    for done in report.parts:
        # Rounded: the schema allows no exponent in a time.
        case = TestCase(done.name, "gradwatch.nightly", round(done.seconds, 3))
        if done.state == "skipped":
            case.result = [Skipped(legal_xml(done.line))]
        elif done.state != "passed":
            kind = Error if done.state == "broken" else Failure
            fault = kind(legal_xml(done.line), done.state)
            fault.text = legal_xml("\n".join(p.told for p in done.problems))
            case.result = [fault]
        parts.add_testcase(case)
    return output.junit(*([output.suite_of(agreement)] if agreement else []), parts)
