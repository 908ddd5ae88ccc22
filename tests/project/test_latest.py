"""What is kept of the last runs: the newest of each, with its date and commit."""

import pytest

from gradwatch.harness.agreement.suite import combined
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import (
    AGREE,
    CHECK,
    AgreeRecord,
    AgreeSummary,
    CheckRecord,
    Environment,
    NoSummary,
)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LATEST", tmp_path)
    monkeypatch.delenv(documents.VARIABLE)


def verdict(op, verdict="agree", case="a", backend="torch_custom"):
    given = {"op": op, "case": case, "backend": backend, "verdict": verdict}
    rest = {"regime": "normal", "framework": "torch", "framework_version": "2"}
    return AgreeRecord(**given, **rest, device="cpu", dtype="float32", tensor="dx")


def run(day, *records, machine="here", **summary):
    about = Environment(machine=machine, date=f"2026-01-0{day}", commit=str(day) * 40)
    summary = AgreeSummary(pairs={r.op: {} for r in records}, **summary)
    assert (
        documents.keep(AGREE, documents.document(records, summary, about), combined)
        == ""
    )
    return documents.read(documents.LATEST / "agree.json.gz", AGREE)


def test_the_newest_verdict_of_each_case_counts_with_its_date_and_commit():
    run(1, verdict("softmax"), verdict("gelu", "disagree"))
    kept = run(2, verdict("softmax", "disagree"))
    found = {r.op: (r.verdict, r.date, r.commit[:1]) for r in kept.records}
    assert found == {
        "softmax": ("disagree", "", ""),
        "gelu": ("disagree", "2026-01-01", "1"),
    }
    assert kept.environment.date == "2026-01-02"
    assert kept.summary.verdicts == {"disagree": 2}
    again = run(3, verdict("softmax"))
    assert {r.op: r.date for r in again.records}["gelu"] == "2026-01-01"


def test_an_op_that_has_gone_is_forgotten():
    run(1, verdict("no_such_op"), verdict("gelu"))
    assert [r.op for r in run(2, verdict("softmax")).records] == ["gelu", "softmax"]


def test_a_backend_that_ran_once_is_not_missing():
    run(1, verdict("softmax"), missing={"mlx_custom": "not installed"})
    kept = run(2, verdict("gelu"), missing={"torch_custom": "not asked"})
    assert kept.summary.missing == {"mlx_custom": "not installed"}


def test_machines_are_not_mixed():
    run(1, verdict("softmax"), machine="there")
    assert [r.op for r in run(2, verdict("gelu")).records] == ["gelu"]
    aside = documents.read(documents.LATEST / "agree-there.json.gz", AGREE)
    assert [r.op for r in aside.records] == ["softmax"]


ODD = '{"schema": 1, "environment": {}, "summary": {}, "records": [7]}'


@pytest.mark.parametrize(
    ("content", "said"), [("{", "not readable as JSON"), (ODD, "Expected `object`")]
)
def test_a_file_that_cannot_be_read_is_set_aside_and_a_new_one_begun(content, said):
    file = documents.LATEST / "check.json.gz"
    file.write_text(content)
    told = CheckRecord(name="a against b", passes=True, told="passes")
    now = documents.document([told], NoSummary())
    why = documents.keep(CHECK, now)
    assert f"check.json.gz: {said}" in why
    assert "set aside as check.json.gz.unreadable-" in why
    assert documents.read(file, CHECK).records == [told]
    assert documents.keep(CHECK, now) == "", "and it is said once"
    file.write_text("again")
    assert "check.json.gz.unreadable-" in documents.keep(CHECK, now)
    asides = sorted(documents.LATEST.glob("*.unreadable-*"))
    assert [aside.read_text() for aside in asides] == [content, "again"]


def test_a_checkout_keeps_no_check_that_is_made_elsewhere(tmp_path, monkeypatch):
    """A check in another folder was kept in the checkout of an editable install."""
    told = CheckRecord(name="a against b", passes=True, told="passes")
    monkeypatch.chdir(tmp_path)
    assert documents.keep(CHECK, documents.document([told], NoSummary())) == ""
    assert not [*documents.LATEST.iterdir()]
    run(1, verdict("softmax"))  # of its own ops, wherever it is called


def test_outside_of_a_project_nothing_is_written(monkeypatch):
    nowhere = documents.PROJECT.__class__(
        documents.ROOT, (), (), (), problem="none here"
    )
    monkeypatch.setattr(documents, "PROJECT", nowhere)
    told = CheckRecord(name="a against b", passes=True, told="passes")
    assert documents.keep(CHECK, documents.document([told], NoSummary())) == ""
    assert not [*documents.LATEST.iterdir()]
