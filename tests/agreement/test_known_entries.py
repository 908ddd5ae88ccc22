"""Known outcomes are made from findings, and hang on no one seed."""

import pytest

from gradwatch.harness.agreement.findings import Finding, Site
from gradwatch.harness.agreement.known_entries import Unconfirmed, announced, text
from gradwatch.harness.agreement.store import page
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.defects.known import (
    FILE,
    as_expected,
    expanded,
    expected_verdict,
    gone,
)
from gradwatch.harness.judging.defects.known import entries as known_entries
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem

CASES = ["4x5", "3x1"]
REGIMES = ["normal", "large", "ties"]


def record(regime, case, verdict, dtype="float32"):
    return AgreeRecord(
        op="log_softmax",
        regime=regime,
        case=f"log_softmax[{regime}-{case}-{dtype}]",
        dtype=dtype,
        device="cpu",
        backend="oneflow_autograd",
        framework="oneflow",
        framework_version="0.9.0",
        tensor="y",
        verdict=verdict,
        ratio=24.0,
        limit=17.0,
        radius=1e-7,
        expected=0.0,
        got=1.4e-6,
        worst_index=[0, 0],
    )


def run(*failing):
    """A run of the suite in which some (regime, case) fail, in float32."""
    return [
        record(r, c, "disagree" if d == "float32" and (r, c) in failing else "agree", d)
        for r in REGIMES
        for c in CASES
        for d in ("float32", "float64")
    ]


def finding(verdict="disagree", backend="oneflow_autograd"):
    site = Site("log_softmax", backend, verdict, "forward", "float32")
    return Finding(
        site,
        record("normal", "3x1", verdict),
        shapes={"x": (1, 1)},
        script=f"log_softmax-oneflow-{verdict}.py",
    )


ALWAYS = [(regime, "3x1") for regime in REGIMES]


def entries(*runs):
    return [
        known
        for place in enumerate(announced(runs, [finding()]))
        for known in expanded(*place)
    ]


def listed(records, known):
    """Records with what the entries that reach their trials let expect."""
    for r in records:
        case = r.case.partition("-")[2].rpartition("-")[0]
        problem = Problem(load_op(r.op), {}, [], dtype=r.dtype)
        trial = Trial(r.op, case, r.regime, problem)
        assert trial.name == r.case
        reaching = [k for k in known if k.reaches(r.backend, trial, r.device)]
        r.expected_verdict = expected_verdict(r, reaching)
    return records


def test_what_fails_for_one_case_and_dtype_is_announced_for_just_that():
    (entry,) = entries(run(*ALWAYS), run(*ALWAYS))
    assert entry.where == ("case 3x1", "dtype float32")
    assert (entry.tensor, entry.versions) == ("y", ("0.9.0",))


def test_an_entry_says_which_finding_it_rests_on():
    (entry,) = entries(run(*ALWAYS))
    assert entry.reason == "OneFlow 0.9.0: log_softmax gives wrong y in float32"


@pytest.mark.parametrize("sporadic", [("ties", "4x5"), ("large", "4x5")])
def test_what_fails_with_one_seed_alone_is_expected_and_not_gone_with_another(sporadic):
    one, other = run(*ALWAYS, sporadic), run(*ALWAYS)
    known = entries(one, other)
    for records in (one, other):
        assert all(map(as_expected, listed(records, known)))
        assert gone(records, known) == ()


def test_a_defect_that_has_gone_is_noticed():
    known = entries(run(*ALWAYS))
    assert gone(listed(run(), known), known) == tuple(known)


def test_a_defect_elsewhere_is_not_announced():
    known = entries(run(*ALWAYS))
    (new,) = listed([record("normal", "4x5", "disagree", "float64")], known)
    assert new.expected_verdict == "agree"


def test_the_data_file_is_written_as_it_was_read():
    assert text(known_entries()) == FILE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "other",
    [finding("crash"), finding(backend="torch_autograd")],
    ids=["verdict", "backend"],
)
def test_a_defect_that_is_no_finding_is_refused(other):
    with pytest.raises(Unconfirmed, match="3x1-float32"):
        announced([run(*ALWAYS)], [other])


def test_the_page_says_what_is_wrong_by_how_much_and_which_script_shows_it():
    text = page([finding()])
    for part in ("24", "gives wrong y in float32", "log_softmax-oneflow-disagree.py"):
        assert part in text
