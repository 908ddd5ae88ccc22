"""The verdict on one op and backend: that on all of its tensors, in one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from gradwatch.harness.judging.defects.known import unexpected
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import PASSING, VERDICTS

Place = TypeVar("Place")


def grouped(
    records: Iterable[AgreeRecord], place: Callable[[AgreeRecord], Place]
) -> dict[Place, list[AgreeRecord]]:
    """Records by their place; of each the one that says most comes first.

    That is one without a number, as of a crash, then one with a diagnosis, then one
    with a large error.
    """
    groups: dict[Place, list[AgreeRecord]] = {}
    for record in records:
        groups.setdefault(place(record), []).append(record)
    for several in groups.values():
        several.sort(key=lambda r: (r.distance is None, r.telling), reverse=True)
    return groups


@dataclass(frozen=True)
class Overall:
    """What a table shows of an op on a backend.

    Attributes:
        verdict: That of the worst record; where all are right, imprecise (at least one
            is), agree, vacuous (nothing could be told) or unsupported.
        worst: The worst unexpected record; else the worst known defect; else the record
            with the largest ratio.
        unexpected: The number of records that are not as expected.
        listed: Whether a known defect is among the records.
    """

    verdict: str
    worst: AgreeRecord
    unexpected: int
    listed: bool


def overall(records: Sequence[AgreeRecord]) -> Overall:
    """The verdict on an op and one or several backends, from one or more records."""
    wrong, listed = unexpected(records), [one for one in records if one.listed]
    worst = max(wrong or listed or records, key=badness)
    right = _right({record.verdict for record in records})
    verdict = worst.verdict if wrong or listed else right
    return Overall(verdict, worst, len(wrong), bool(listed))


def badness(record: AgreeRecord) -> tuple[int, float]:
    """Sorts records: the failing ones by verdict, the worst last, and then by ratio.

    What is imprecise comes before them: its ratio is the one to show.
    """
    verdict = record.verdict
    rank = 0 if verdict in PASSING else VERDICTS.index(verdict)
    rank = 1 if verdict == "imprecise" else rank
    return rank, record.distance or 0.0


def _right(verdicts: set[str]) -> str:
    """The verdict of a cell in which every tensor is as expected."""
    if verdicts == {"unsupported"}:
        return "unsupported"
    if "imprecise" in verdicts:
        return "imprecise"
    return "vacuous" if verdicts <= {"vacuous", "unsupported"} else "agree"
