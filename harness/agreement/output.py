"""Reports of the agreement suite: the verdict on an op, JUnit XML and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from gradwatch.harness.judging.defects.known import unexpected
from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.markdown import cell, code, legal_xml
from gradwatch.harness.project.records import AgreeRecord, AgreeSummary
from gradwatch.harness.project.verdicts import PASSING, VERDICTS

if TYPE_CHECKING:
    from junitparser import TestSuite

Judged = Document[AgreeRecord, AgreeSummary]

_place = attrgetter("op", "backend")
Place = TypeVar("Place")


def grouped(
    records: Iterable[AgreeRecord], place: Callable[[AgreeRecord], Place]
) -> dict[Place, list[AgreeRecord]]:
    """Records by their place, the most informative one of each first.

    That is one without a number, as of a crash, then one with a diagnosis, then one
    with a large error.
    """
    groups: dict[Place, list[AgreeRecord]] = {}
    for record in records:
        groups.setdefault(place(record), []).append(record)
    for several in groups.values():
        several.sort(
            key=lambda r: (r.distance is None, bool(r.diagnosis), r.distance or 0.0),
            reverse=True,
        )
    return groups


@dataclass(frozen=True)
class Overall:
    """The cell of an op and a backend in a table.

    The verdict is that of the worst record, which is unexpected or else a known defect;
    where all are right, it is imprecise, agree, vacuous or unsupported. `unexpected`
    is a count; `listed` says whether a known defect is among the records.
    """

    verdict: str
    worst: AgreeRecord
    unexpected: int
    listed: bool


def overall(records: Sequence[AgreeRecord]) -> Overall:
    """The verdict on an op and one or several backends, from one or more records."""
    wrong, listed = unexpected(records), [one for one in records if one.listed]
    worst = max(wrong or listed or records, key=badness)
    verdict: str = worst.verdict
    seen = {record.verdict for record in records}
    if not (wrong or listed or seen == {"unsupported"}):
        right = "vacuous" if seen <= {"vacuous", "unsupported"} else "agree"
        verdict = "imprecise" if "imprecise" in seen else right
    return Overall(verdict, worst, len(wrong), bool(listed))


def badness(record: AgreeRecord) -> tuple[int, float]:
    """A sort key of records: failing ones by verdict, the worst last, then by ratio.

    Imprecise records sort between right and failing ones: their ratio is shown.
    """
    verdict = record.verdict
    rank = 0 if verdict in PASSING else VERDICTS.index(verdict)
    rank = 1 if verdict == "imprecise" else rank
    return rank, record.distance or 0.0


def junit(*suites: TestSuite) -> str:
    """Suites of JUnit as XML."""
    from junitparser import JUnitXml

    xml = JUnitXml("gradwatch")
    for suite in suites:
        xml.add_testsuite(suite)
    text: bytes = xml.tostring()  # type: ignore[no-untyped-call]  # its hint is missing
    return text.decode()


def suite_of(document: Judged) -> TestSuite:
    """One test case for each op and backend."""
    # Few runs need it, and its import is a fifteenth of all imports.
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
    headline = f"All as expected: {summary.judged} tensors judged"
    if bad:
        first, of_all = bad[0], f"({len(bad)} of {summary.judged} tensors)"
        at = f"{cell(first.op)} on {first.backend}: {cell(first.tensor)}"
        headline = f"**{at} {first.verdict}** {of_all}"
    elif summary.gone:
        headline = f"**{len(summary.gone)} known defects are gone**"
    lines = [headline, ""]
    for (op, backend), records in grouped(bad, _place).items():
        worst = records[0]
        lines.append(
            f"- **{cell(op)}** on {code(backend)}, {len(records)} tensors, such as "
        )
        lines[-1] += f"{code(worst.case)}: {worst.verdict}: {cell(worst.story)}"
    lines += [f"- known defect is gone: {cell(reason)}" for reason in summary.gone]
    lines += [f"- not run: {code(b)}: {cell(w)}" for b, w in summary.missing.items()]
    return "\n".join(lines) + "\n"
