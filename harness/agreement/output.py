"""Reports of the agreement suite: JUnit XML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING

from gradwatch.harness.agreement.overall import grouped
from gradwatch.harness.judging.defects.known import unexpected
from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.markdown import cell, code, legal_xml
from gradwatch.harness.project.records import AgreeRecord, AgreeSummary

if TYPE_CHECKING:
    from junitparser import TestSuite

Judged = Document[AgreeRecord, AgreeSummary]

_place = attrgetter("op", "backend")


def junit(document: Judged) -> str:
    """JUnit XML: one test case for each op and backend."""
    return as_text(suite_of(document))


def as_text(*suites: TestSuite) -> str:
    """Suites as JUnit XML."""
    from junitparser import JUnitXml

    xml = JUnitXml("gradwatch")
    for suite in suites:
        xml.add_testsuite(suite)
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]  # its hint is missing
    return text.decode()


def suite_of(document: Judged) -> TestSuite:
    """One test case for each op and backend."""
    # Few runs want it, and it is a fifteenth of what all of them import.
    from junitparser import Error, Failure, Skipped, TestCase, TestSuite

    suite = TestSuite("gradwatch agree")
    for (op, backend), records in grouped(document.records, _place).items():
        case = TestCase(legal_xml(f"{op}[{backend}]"), legal_xml(f"gradwatch.{op}"))
        bad = unexpected(records)
        if bad:
            kind = Failure if bad[0].verdict != "error" else Error
            lines = [legal_xml(f"{r.case}: {r.verdict}: {r.story}") for r in bad]
            fault = kind(lines[0], bad[0].verdict)
            fault.text = "\n".join(lines[:20])
            case.result = [fault]
        elif all(r.verdict == "unsupported" for r in records):
            case.result = [Skipped(legal_xml(records[0].message))]
        suite.add_testcase(case)
    for backend, why in document.summary.missing.items():
        case = TestCase(name=f"all[{backend}]", classname="gradwatch.backend")
        case.result = [Skipped(legal_xml(why))]
        suite.add_testcase(case)
    return suite


def markdown(document: Judged) -> str:
    """A summary that starts with the failures."""
    summary = document.summary
    bad = unexpected(document.records)
    lines = [_headline(bad, summary), ""]
    for (op, backend), records in grouped(bad, _place).items():
        worst = records[0]
        lines.append(
            f"- **{cell(op)}** on {code(backend)}, {len(records)} tensors, such as "
        )
        lines[-1] += f"{code(worst.case)}: {worst.verdict}: {cell(worst.story)}"
    lines += [f"- known defect is gone: {cell(reason)}" for reason in summary.gone]
    lines += [
        f"- not run: {code(b)}: {cell(why)}" for b, why in summary.missing.items()
    ]
    return "\n".join(lines) + "\n"


def _headline(bad: Sequence[AgreeRecord], summary: AgreeSummary) -> str:
    if bad:
        first = bad[0]
        return (
            f"**{cell(first.op)} on {first.backend}: {cell(first.tensor)} "
            f"{first.verdict}** ({len(bad)} of {summary.judged} tensors)"
        )
    if summary.gone:
        return f"**{len(summary.gone)} known defects are gone**"
    return f"All as expected: {summary.judged} tensors judged"
