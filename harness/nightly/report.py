"""The report of a nightly run: Markdown for a CI job's page, JUnit XML for viewers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from junitparser import Error, Failure, Skipped, TestCase, TestSuite

from gradwatch.harness.agreement import output
from gradwatch.harness.agreement.output import Judged
from gradwatch.harness.nightly.night import Report, Result
from gradwatch.harness.project.markdown import cell, legal_xml
from gradwatch.harness.project.records import Problem

#: Problems listed in full; nobody reads longer lists.
SHOWN = 10
LONGEST = 300  # characters of one problem

_SIGNS = {"passed": "✓", "failed": "✗", "broken": "✗", "skipped": "–"}


def shown(done: Result) -> str:
    """How a part ended, in a line."""
    return f"{_SIGNS[done.state]} {done.name}: {done.outcome} ({done.seconds:.0f} s)"


# Markdown -----------------------------------------------------------------------


def markdown(report: Report) -> str:
    """New problems, problems that were known, then a line for each part."""
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
        ended = f"{_SIGNS[d.state]} {d.state}: {cell(d.outcome)}"
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
    lacking = [f"{d.name}: {cell(d.outcome)}" for d in report.parts if d.required]
    if lacking and not problems:  # green means judged: what is missing stands here, too
        return f"**Not judged: {'; '.join(lacking)}**"
    if not problems:
        shown = ("agree", "watch")
        lines = [d.outcome for d in report.parts if d.name in shown and d.outcome]
        return f"**All as expected**: {'; '.join(lines) or 'no part found a problem'}"
    since = (p for p in report.new or problems if p.what.startswith("wrong since"))
    first = next(since, problems[0])  # with the commit, where the history has it
    place = " on ".join(part for part in (first.op, first.backend) if part)
    more = len(problems) - 1
    kind = "New" if report.new else "Still"
    headline = f"**{kind}: {place or first.part}: {cell(first.what)}**"
    return headline + (f" and {more} more" if more else "")


def _listed(problems: Sequence[Problem]) -> Iterator[str]:
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
    suites = [output.suite_of(agreement)] if agreement else []
    parts = TestSuite("parts")
    for done in report.parts:
        parts.add_testcase(_part(done))
    return output.as_text(*suites, parts)


def _part(done: Result) -> TestCase:
    # Rounded: the schema allows no exponent in a time.
    case = TestCase(done.name, "gradwatch.nightly", round(done.seconds, 3))
    if done.state == "skipped":
        case.result = [Skipped(legal_xml(done.outcome))]
    elif done.state != "passed":
        kind = Error if done.state == "broken" else Failure
        fault = kind(legal_xml(done.outcome), done.state)
        fault.text = legal_xml("\n".join(problem.told for problem in done.problems))
        case.result = [fault]
    return case
