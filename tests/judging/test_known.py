"""Known outcomes are held both ways."""

import dataclasses
import json
import os

import pytest
from msgspec.structs import replace

from gradwatch.harness.judging import known
from gradwatch.harness.judging.known import Known, as_expected, expected_verdict, gone
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import op_names

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
    op="batch_norm",
    backend="oneflow_*",
    case="batch_norm[shifted-*-float64]",
    tensor="*",
    verdict="disagree",
    reason="one-pass variance",
    versions=["0.9.0"],
)


def expected(**changes):
    record = replace(RECORD, **changes)
    return replace(record, expected_verdict=expected_verdict(record, [ENTRY]))


def test_an_announced_defect_is_as_expected():
    record = expected()
    assert record.expected_verdict == "disagree"
    assert as_expected(record)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "layer_norm"},
        {"backend": "torch_autograd"},
        {"case": "batch_norm[shifted-4x3-float32]"},
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


def test_an_entry_reaches_its_cases_on_its_backends_in_any_version():
    run = (RECORD.backend, RECORD.case, "vjp", "cpu")
    assert ENTRY.reaches(*run)
    for place, other in enumerate(("torch_autograd", "batch_norm[a]", "hvp", "cuda")):
        assert not ENTRY.reaches(*run[:place], other, *run[place + 1 :])


def test_brackets_of_a_case_name_are_no_character_class():
    assert not ENTRY.covers(replace(RECORD, case="batch_normX"))


def test_the_data_file_gives_a_reason_and_a_version_with_each_entry():
    for entry in known.load():
        assert entry.reason
        assert entry.versions


def test_a_defect_that_occurs_only_sometimes_is_never_gone():
    """OneFlow's empty product is what lay in memory, which may be the right number."""
    (entry,) = (k for k in known.load() if (k.op, k.tensor) == ("dot", "y"))
    record = expected(
        op="dot", backend="oneflow_custom", case="dot[empty-0-0-float32]", tensor="y"
    )
    assert as_expected(
        replace(record, expected_verdict=expected_verdict(record, [entry]))
    )
    assert gone([replace(record, verdict="agree")], [entry]) == ()
    certain = dataclasses.replace(entry, sometimes=False)
    assert gone([replace(record, verdict="agree")], [certain]) == (certain,)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"sometimes": 1}, "entry 0: sometimes is neither"),
        ({"verdict": "agree"}, "no defect 'agree'"),
        ({"extra": "a"}, "extra"),
        ({"op": 7}, "entry 0: op is no text"),
        ({"reason": None}, "entry 0: reason is no text"),
        ({"versions": "0.9.0"}, "versions is no list"),
        ({"versions": [{}]}, "versions is no list"),
    ],
)
def test_a_malformed_entry_is_refused(tmp_path, change, told):
    file = tmp_path / "known.json"
    file.write_text(json.dumps([{**vars(ENTRY), **change}]))
    with pytest.raises(known.Malformed, match=told):
        known.load(file)


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[7]", "[" * 100_000, "\udcff"],
    ids=["empty", "no list", "no object", "deep", "binary"],
)
def test_a_damaged_data_file_is_one_line_with_its_name(tmp_path, text):
    file = tmp_path / "known.json"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(known.Malformed, match=r"^known\.json: .+$") as caught:
        known.load(file)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "known.json")
    with pytest.raises(known.Malformed, match=r"known\.json: not a regular file"):
        known.load(tmp_path / "known.json")


PLATFORM = dataclasses.replace(ENTRY, op="*", case="*[subnormal-*]")


@pytest.mark.parametrize("op", ["batch_norm", "relu"])
def test_a_property_of_a_platform_is_declared_once_and_held_both_ways(op):
    flushed = replace(RECORD, op=op, case=f"{op}[subnormal-7-float64]")
    listed = replace(flushed, expected_verdict=expected_verdict(flushed, [PLATFORM]))
    assert as_expected(listed)
    other = replace(flushed, case=f"{op}[normal-7-float64]")
    assert expected_verdict(other, [PLATFORM]) == "agree"
    rest = [replace(other, op=name) for name in op_names()]
    gentle = replace(flushed, verdict="agree")
    assert gone([flushed, *rest], [PLATFORM]) == ()
    assert gone([gentle, *rest], [PLATFORM]) == (PLATFORM,)
    assert gone([gentle, *rest[1:]], [PLATFORM]) == ()  # one op is left out
