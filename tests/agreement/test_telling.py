"""Of several wrong tensors the one is shown of which the mistake is known.

The search runs once for an op and a backend: the tensor farthest off has no diagnosis.
"""

from __future__ import annotations

from gradwatch.harness.agreement.output import grouped, markdown
from gradwatch.harness.dashboard.pages import faults
from gradwatch.harness.nightly.night import _problems
from gradwatch.harness.project.documents import Document, document
from gradwatch.harness.project.records import AgreeRecord, AgreeSummary
from tests.dashboard.browser.invented import agree_record


def record(verdict: str, ratio: float | None, diagnosis: str = "") -> AgreeRecord:
    fields = agree_record("exp2", "x", verdict=verdict, ratio=ratio)
    return AgreeRecord(**{**fields, "diagnosis": diagnosis})


FAR, NAMED = record("disagree", 1e6), record("disagree", 40.0, "dx is transposed")


def test_the_terminal_shows_the_diagnosis() -> None:
    assert grouped([FAR, NAMED, FAR], lambda r: r.op) == {"exp2": [NAMED, FAR, FAR]}


def test_the_dashboard_shows_the_diagnosis() -> None:
    (fault,) = faults([FAR, NAMED, FAR])
    assert fault.first.diagnosis == "dx is transposed"


def test_the_night_shows_the_diagnosis_but_of_a_crash_the_crash() -> None:
    (problem,) = _problems([FAR, NAMED])
    assert "diagnosis: dx is transposed" in str(problem)
    (problem,) = _problems([NAMED, record("crash", None)])
    assert "crash" in str(problem)


def test_the_markdown_shows_the_diagnosis() -> None:
    written: Document = document([FAR, NAMED], AgreeSummary())
    assert "diagnosis: dx is transposed" in markdown(written)
