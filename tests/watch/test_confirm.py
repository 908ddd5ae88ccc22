"""Steps in time are measured again side by side."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from gradwatch.harness.history.asv_results import Series
from gradwatch.harness.project.records import ConfirmationRecord
from gradwatch.harness.timing.compare import PAIRS
from gradwatch.harness.timing.samples import LEVEL, Estimate
from gradwatch.harness.watch import alerts as confirming
from gradwatch.harness.watch.alerts import (
    WRONG,
    Findings,
    NotComparable,
    comparing,
    confirm,
    key_of,
)
from gradwatch.harness.watch.search import survey
from gradwatch.harness.workers.lifetime import Died
from tests.copies import copy_code
from tests.histories import (
    ENVIRONMENT,
    MACHINE,
    NAMES,
    POINT,
    SERIES,
    git,
    noisy,
    record,
    repository,
    stepped,
)

RUNS, AT = 40, 20


def about(value, margin=0.01):
    return Estimate(value, value - margin, value + margin, PAIRS, LEVEL)


# Confirming ---------------------------------------------------------------------


@pytest.fixture
def root(tmp_path):
    return tmp_path / "repository"


@pytest.fixture
def suspect(root):
    """An alert of +20 % that few runs stand behind."""
    commits = repository(root, ["square"] * RUNS)
    record(root, commits, {SERIES: stepped(noisy(RUNS), RUNS - 3, 0.2)})
    (alert,) = survey(root / "results", root=root).alerts
    assert alert.state == "suspected"
    return alert


def confirmed(alert, answer, root, **more):
    def compare(series, old, new):
        assert (old, new) == alert.around
        if isinstance(answer, Exception):
            raise answer
        return answer

    given = {"machine": MACHINE, "findings": Findings(root / "none.json"), **more}
    (found,) = confirm([alert], compare, root=root, **given)
    return found


@pytest.mark.parametrize(
    ("answer", "state", "fails"),
    [
        (about(1.2), "confirmed", True),
        (about(1.05, 0.03), "confirmed", True),
        (about(1.0), "cleared", False),
        (about(0.8), "cleared", False),
        (about(1.08, 0.09), "suspected", False),
        (about(1.02, 0.015), "suspected", False),
        (replace(about(1.2), level=0.9), "suspected", False),
        (NotComparable("no such size"), "suspected", False),
    ],
)
def test_a_comparison_confirms_or_clears_an_alert_or_leaves_it(
    suspect, root, answer, state, fails
):
    found = confirmed(suspect, answer, root)
    assert (found.state, found.fails) == (state, fails)
    assert found.why


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (about(1.0), "cleared"),
        (about(1.02, 0.09), "suspected"),
        (about(1.08, 0.09), "confirmed"),
    ],
)
def test_a_comparison_overrides_what_further_runs_confirmed(
    suspect, root, answer, state
):
    """Where it is not resolved, the likelier of both; the border is at 1.03."""
    old = replace(suspect, state="confirmed", fails=True)
    found = confirmed(old, answer, root)
    assert (found.state, found.fails) == (state, state == "confirmed")


@pytest.mark.parametrize(
    "change",
    [{"worse": False}, {"state": "accepted"}, {"state": "cleared"}],
    ids=str,
)
def test_an_alert_that_cannot_fail_is_not_measured_again(suspect, root, change):
    asked = AssertionError("it was compared")
    assert confirmed(replace(suspect, **change), asked, root).why == suspect.why


def test_a_wrong_gradient_is_neither_measured_again_nor_cleared(suspect, root):
    """It would be a ratio then, and no longer be called wrong."""
    verdict = replace(suspect.settled("confirmed", WRONG), good="", around=("", ""))

    def never(*_):
        raise AssertionError("a verdict is measured again")

    cleared = ConfirmationRecord(key_of(verdict), 1.0, 0.99, 1.01)
    findings = Findings(root / "none.json")
    for known in ({}, {key_of(verdict): cleared}):
        findings.known = known
        assert (
            confirmed(verdict, AssertionError("measured"), root, findings=findings)
            == verdict
        )


def test_an_alert_of_another_machine_is_not_measured_here(suspect, root):
    asked = AssertionError("it was compared")
    found = confirmed(suspect, asked, root, machine="another")
    assert (found.state, MACHINE in found.why) == ("suspected", True)


def test_without_time_an_alert_stays_as_it_is(suspect, root):
    asked = AssertionError("it was compared")
    found = confirmed(suspect, asked, root, enough=lambda: True)
    assert found.state == "suspected"
    assert "no time" in found.why


def test_a_step_between_commits_with_equal_code_is_cleared_unmeasured(root):
    commits = repository(root, ["square"] + [""] * (RUNS - 1))
    record(root, commits, {SERIES: stepped(noisy(RUNS), AT, 0.2)})
    (alert,) = survey(root / "results", root=root).failing
    assert confirmed(alert, AssertionError("compared"), root).state == "cleared"


def test_a_comparison_is_kept_and_not_repeated(suspect, root, tmp_path):
    findings = Findings(tmp_path / "kept" / "cpu.json")
    confirmed(suspect, about(1.2), root, findings=findings)
    again = Findings(tmp_path / "kept" / "cpu.json")
    asked = AssertionError("it was compared again")
    assert confirmed(suspect, asked, root, findings=again).fails
    assert len(again.known) == 1


def test_a_comparison_that_cannot_be_written_still_counts(suspect, root, tmp_path):
    """A file stands where the folder should be; it is not touched."""
    (tmp_path / "kept").write_text("a file")
    findings = Findings(tmp_path / "kept" / "cpu.json")
    assert confirmed(suspect, about(1.2), root, findings=findings).fails
    assert "cpu.json cannot be written" in findings.troubles[0]
    assert (tmp_path / "kept").read_text() == "a file"


def test_a_damaged_file_of_comparisons_is_said_and_left_alone(suspect, root, tmp_path):
    """One odd record of many: those beside it must not be written over."""
    file = tmp_path / "cpu.json"
    findings = Findings(file)
    confirmed(suspect, about(1.2), root, findings=findings)
    before = file.read_text().replace('"ratio":1.2', '"ratio":"x"')
    file.write_text(before)
    findings = Findings(file)
    assert confirmed(suspect, about(1.2), root, findings=findings).fails
    assert findings.known  # but not written
    (trouble,) = findings.troubles
    assert "cpu.json: Expected `float | null`" in trouble
    assert file.read_text() == before


def test_what_was_confirmed_stays_so_without_measuring_again(root, monkeypatch):
    monkeypatch.setattr(
        "gradwatch.harness.watch.search.machine_name", lambda _: MACHINE
    )
    record(root, repository(root, ["square"] * 4), {SERIES: [1.0, 1.0, 1.0, 2.0]})
    (alert,) = survey(root / "results", root=root).alerts
    assert alert.state == "suspected"
    findings = Findings(root / "results" / "confirmations" / f"{MACHINE}.json")
    findings.keep(ConfirmationRecord(key_of(alert), 2.0, 1.9, 2.1))
    (alert,) = survey(root / "results", root=root).failing
    assert alert.state == "confirmed"


def test_a_creep_that_looked_like_a_step_still_fails(root, monkeypatch):
    """Its neighbours are alike, which clears the step, but both ends are not."""
    values = stepped(noisy(RUNS), AT, 0.2)
    commits = repository(root, ["square"] * RUNS)
    record(root, commits, {SERIES: values})

    def compare(series, old, new):
        return about(1.2 if (old, new) == (commits[0], commits[-1]) else 1.0)

    monkeypatch.setattr(
        "gradwatch.harness.watch.search.comparing", lambda *_: nullcontext(compare)
    )
    monkeypatch.setattr(
        "gradwatch.harness.watch.search.machine_name", lambda _: MACHINE
    )
    creep, step = survey(root / "results", root=root, confirming=True).alerts
    assert (step.kind, step.state, step.fails) == ("step", "cleared", False)
    assert (creep.kind, creep.state, creep.fails) == ("creep", "confirmed", True)
    assert creep.around == (commits[0], commits[-1])
    assert "compared: 1.200" in creep.why


def test_a_cleared_step_with_equal_ends_is_no_creep(root, monkeypatch):
    """The machine has become slower."""
    commits = repository(root, ["square"] * RUNS)
    record(root, commits, {SERIES: stepped(noisy(RUNS), AT, 0.2)})
    always = nullcontext(lambda *_: about(1.0))
    monkeypatch.setattr("gradwatch.harness.watch.search.comparing", lambda *_: always)
    monkeypatch.setattr(
        "gradwatch.harness.watch.search.machine_name", lambda _: MACHINE
    )
    found = survey(root / "results", root=root, confirming=True)
    assert {(alert.kind, alert.state) for alert in found.alerts} == {
        ("step", "cleared"),
        ("creep", "cleared"),
    }


SLOW = """@op.implement("manual")
def manual(x):
    def backward(dy):
        for _ in range(5):
            dx = 2 * x * dy
        return (dx,)

    return x * x, backward


"""
QUICK = SLOW.replace("range(5)", "range(1)")


@pytest.mark.parametrize("over", [True, False])
def test_a_comparison_begins_no_pair_when_the_time_is_over(root, monkeypatch, over):
    plans = []

    def compared(a, b, plan, phase):
        plans.append(plan)
        raise Died("it is not measured here")

    monkeypatch.setattr(confirming.paired, "compare_phases", compared)
    commits = repository(root, ["square"] * 2)
    point = dict(zip(NAMES, ("65536", *POINT[1:]), strict=True))
    series = Series(MACHINE, ENVIRONMENT, SERIES, point, "seconds")
    with (
        comparing(root, 1.0, lambda: over) as compare,
        pytest.raises(NotComparable),
    ):
        compare(series, *commits)
    assert [plan.enough(PAIRS) for plan in plans] == [over]


@pytest.mark.slow
def test_a_slowdown_planted_in_a_real_page_is_found_by_measuring(tmp_path):
    """Five products instead of one, in the second of two commits to the page."""
    copy_code(tmp_path, ("impls",))
    page = tmp_path / "impls" / "ops" / "square.py"
    text = page.read_text()
    start, end = text.index('@op.implement("manual")'), text.index('@op.implement("aut')
    git(tmp_path, "init", "-q")
    commits = []
    for manual in (QUICK, SLOW):
        page.write_text(f"{text[:start]}{manual}{text[end:]}")
        git(tmp_path, "add", "impls")
        git(tmp_path, "commit", "-q", "-m", "page")
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    values = ("65536", "float32", "cpu", "numpy_manual")
    point = dict(zip(NAMES, values, strict=True))
    series = Series(MACHINE, ENVIRONMENT, SERIES, point, "seconds")
    with comparing(tmp_path, budget=1.0) as compare:
        found = compare(series, *commits)
    assert found.resolved
    assert found.low > 1.5
    assert git(tmp_path, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize("metric", ["track_gradient_ratio", "track_peak_memory"])
def test_what_is_no_time_is_not_measured_again(root, metric):
    """Further runs decide; they do not scatter as times do."""
    commits = repository(root, ["square"] * 4)
    name = f"bench_speed.square.{metric}"
    record(root, commits, {name: [1.0, 1.0, 1.0, 2.0]})
    (alert,) = survey(root / "results", root=root).alerts
    assert confirmed(alert, AssertionError("it was compared"), root) == alert
