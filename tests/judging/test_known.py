"""Known outcomes are held both ways."""

import json
import os
import re
from dataclasses import replace as replace_trial

import pytest
from msgspec.structs import replace

from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.defects.known import (
    Known,
    as_expected,
    expected_verdict,
    gone,
    holds,
)
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import load_op, op_names, op_page

RECORD = AgreeRecord(
    op="batch_norm",
    case="batch_norm[shifted-4x3-float64]",
    regime="shifted",
    backend="oneflow_autograd",
    framework="oneflow",
    framework_version="0.9.0",
    device="cpu",
    dtype="float64",
    tensor="dx",
    verdict="disagree",
)
ENTRY = Known(
    reason="one-pass variance",
    ops=("batch_norm",),
    backends=("oneflow_*",),
    verdicts=("disagree",),
    versions=("0.9.0",),
    where=("regime == 'shifted'", "dtype == 'float64'"),
)


def in_trial(trial, entry=ENTRY, **changes):
    """The record of a trial, with what the entries that reach it let expect."""
    changes = {"case": trial.name, "regime": trial.regime, **changes}
    record = replace(RECORD, dtype=trial.problem.dtype, **changes)
    reaching = [entry] if entry.reaches(record.backend, trial, record.device) else []
    return replace(record, expected_verdict=expected_verdict(record, reaching))


def trial_of(op="batch_norm", regime="shifted", dtype="float64", **options):
    return next(iter(trials(load_op(op), regimes=[regime], dtypes=[dtype], **options)))


def expected(**changes):
    return in_trial(trial_of(), **changes)


def test_an_announced_defect_is_as_expected():
    record = expected()
    assert record.expected_verdict == "disagree"
    assert as_expected(record)


@pytest.mark.parametrize(
    "place", [{"regime": "normal"}, {"dtype": "float32"}], ids=["regime", "dtype"]
)
def test_a_defect_where_its_clauses_do_not_hold_is_unexpected(place):
    assert not as_expected(in_trial(trial_of(**place)))


@pytest.mark.parametrize(
    "change",
    [
        {"op": "layer_norm"},
        {"backend": "torch_autograd"},
        {"framework_version": "0.9.1"},
        {"verdict": "nonfinite"},
        {"device": "cuda"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_defect_that_no_entry_announces_is_unexpected(change):
    assert not as_expected(expected(**change))


def test_a_right_gradient_is_always_as_expected():
    assert as_expected(expected(verdict="agree"))


def test_a_defect_that_shows_nowhere_any_more_is_gone():
    assert gone([expected(verdict="agree")], [ENTRY]) == (ENTRY,)


def test_a_defect_that_still_shows_is_not_gone():
    assert gone([expected(verdict="agree"), expected()], [ENTRY]) == ()


@pytest.mark.parametrize(
    "record",
    [{"backend": "torch_autograd"}, {"verdict": "unsupported"}, {"verdict": "vacuous"}],
    ids=str,
)
def test_an_entry_that_was_not_put_to_the_test_is_not_gone(record):
    assert gone([expected(**record)], [ENTRY]) == ()


def test_an_entry_that_no_trial_reaches_is_not_gone():
    assert gone([in_trial(trial_of(regime="normal"), verdict="agree")], [ENTRY]) == ()


def test_an_entry_reaches_its_trials_on_its_backends_in_any_version():
    run = (RECORD.backend, trial_of(), "cpu")
    others = ("torch_autograd", trial_of(orders=["hvp"]), "cuda")
    assert ENTRY.reaches(*run)
    for place, other in enumerate(others):
        assert not ENTRY.reaches(*run[:place], other, *run[place + 1 :])


def test_an_own_op_of_the_same_name_has_none_of_the_defects(tmp_path, monkeypatch):
    own = tmp_path / "batch_norm.py"
    own.write_bytes(op_page("batch_norm").read_bytes())
    by_path = replace_trial(trial_of(), op=str(own))
    assert not ENTRY.reaches(RECORD.backend, by_path, "cpu")
    project = {"root": str(tmp_path), "ops": [""]}
    monkeypatch.setenv("GRADWATCH_PROJECT", json.dumps(project))
    assert not ENTRY.reaches(RECORD.backend, trial_of(), "cpu")
    everywhere = replace(ENTRY, ops=("*",))
    assert everywhere.reaches(RECORD.backend, trial_of(), "cpu")


def test_brackets_of_a_case_name_are_no_character_class():
    trial = trial_of()
    assert holds(["like(name, 'batch_norm[shifted-*]')"], trial)
    assert not holds(["like(name, 'batch_nor[m]*')"], trial)


def test_all_clauses_have_to_hold_and_each_in_some_element():
    trial = trial_of()
    assert holds(["regime in ('normal', 'shifted')", "x == x[0]"], trial)
    assert not holds(["regime in ('normal', 'shifted')", "x != x"], trial)


CLAUSES = {
    clause: None
    for entry in known.load()
    for clause in entry.where
    if not re.match(r"(not )?(like|name|case|regime|dtype)\b", clause)
}


@pytest.mark.parametrize("clause", CLAUSES)
def test_each_clause_about_numbers_tells_trials_apart(clause):
    """It holds in some trials of the ops whose entries use it, and in others not."""
    of_it = [k for k in known.load() if clause in k.where]
    ops = sorted({op for k in of_it for op in k.ops})
    orders = sorted({order for k in of_it for order in k.orders})
    found = {
        holds([clause], trial)
        for op in ops[:2]
        for trial in trials(
            load_op(op), dtypes=("float16", "float32", "float64"), orders=orders
        )
    }
    assert found == {True, False}


def test_the_data_file_gives_a_reason_and_a_version_with_each_entry():
    for entry in known.load():
        assert entry.reason
        assert entry.versions


def test_few_defects_occur_only_sometimes_and_each_says_why():
    """A run can find all others gone."""
    assert 0 < len([e for e in known.load() if e.sometimes]) <= 20


def test_a_defect_that_occurs_only_sometimes_is_never_gone():
    """OneFlow's empty product is what lay in memory, which may be the right number."""
    (entry,) = (k for k in known.load() if (k.ops, k.tensors) == (("dot",), ("y",)))
    trial = trial_of("dot", "empty", "float32")
    fields = {"op": "dot", "backend": "oneflow_custom", "tensor": "y"}
    record = in_trial(trial, entry, **fields)
    assert as_expected(record)
    assert gone([replace(record, verdict="agree")], [entry]) == ()
    certain = replace(entry, sometimes="")
    assert gone([replace(record, verdict="agree")], [certain]) == (certain,)


def test_an_entry_is_one_defect_on_each_of_its_places(tmp_path):
    entry = {**STATED, "ops": ["exp2", "dot"], "orders": ["jvp", "hvp"]}
    (tmp_path / "known.json").write_text(json.dumps([entry]))
    places = {(*one.ops, *one.orders) for one in known.load(tmp_path / "known.json")}
    assert places == {(op, order) for op in ("exp2", "dot") for order in ("jvp", "hvp")}


STATED = {
    "reason": "one-pass variance",
    "backends": ["oneflow_*"],
    "ops": ["batch_norm"],
    "verdicts": ["disagree"],
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sometimes": 1}, r"got `int` - at `\$\[0\]\.sometimes`"),
        ({"verdicts": ["agree"]}, "no defect 'agree'"),
        ({"verdicts": []}, "length >= 1"),
        ({"devices": ["tpu"]}, "Invalid enum value 'tpu'"),
        ({"where": ["on Sundays"]}, "no expression: 'on Sundays'"),
        ({"extra": "a"}, "extra"),
        ({"ops": 7}, r"got `int` - at `\$\[0\]\.ops`"),
        ({"reason": None}, r"got `null` - at `\$\[0\]\.reason`"),
        ({"versions": "0.9.0"}, "got `str`"),
        ({"versions": [{}]}, r"got `object` - at `\$\[0\]\.versions\[0\]`"),
    ],
)
def test_a_malformed_entry_is_refused(tmp_path, change, told):
    file = tmp_path / "known.json"
    file.write_text(json.dumps([{**STATED, **change}]))
    with pytest.raises(Unreadable, match=told):
        known.load(file)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[7]", "[" * 100_000, "\udcff"],
    ids=["empty", "no list", "no object", "deep", "binary"],
)
def test_a_damaged_data_file_is_one_line_with_its_name(tmp_path, text):
    file = tmp_path / "known.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Unreadable, match=r"known\.json: .+$") as caught:
        known.load(file)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "known.json")
    with pytest.raises(Unreadable, match=r"known\.json: not a regular file"):
        known.load(tmp_path / "known.json")


PLATFORM = replace(ENTRY, ops=("*",), where=("regime == 'subnormal'",))


@pytest.mark.parametrize("op", ["batch_norm", "relu"])
def test_a_property_of_a_platform_is_declared_once_and_held_both_ways(op):
    flushed = in_trial(trial_of(op, "subnormal"), PLATFORM, op=op)
    assert flushed.expected_verdict == "disagree"
    other = in_trial(trial_of(op, "normal"), PLATFORM, op=op)
    assert other.expected_verdict == "agree"
    rest = [replace(other, op=name) for name in op_names()]
    gentle = replace(flushed, verdict="agree")
    assert gone([flushed, *rest], [PLATFORM]) == ()
    assert gone([gentle, *rest], [PLATFORM]) == (PLATFORM,)
    assert gone([gentle, *rest[1:]], [PLATFORM]) == ()  # one op is left out
