"""The night judges a share of PyTorch's gradients; only what is unexplained is new."""

import datetime
import json

import pytest

from gradwatch.harness.nightly import opinfo, parts, runner
from gradwatch.harness.nightly.night import Night
from gradwatch.harness.nightly.report import markdown
from gradwatch.harness.project.paths import SOURCE
from gradwatch.impls.catalogue import op_names

#: Stands in for the sweep: appends its arguments to a file, and writes its records.
SWEEP = """
import json, sys
from pathlib import Path
with open("calls.jsonl", "a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
records = {records!r}
if records is None:
    sys.exit("RuntimeError: planted")
Path(sys.argv[sys.argv.index("--out") + 1]).write_text(json.dumps(records))
"""


def entry(verdict="agree", finding="", reasons=()):
    judged = [{"tensor": "dx", "verdict": verdict, "message": "dx[0]: 3 times"}]
    made = {"name": "foo", "samples": [{"judged": judged}], "finding": finding}
    return {**made, "not": list(reasons)}


@pytest.fixture
def night(tmp_path):
    """A night whose sweep is still to be planted."""
    (tmp_path / opinfo.SCRIPT).parent.mkdir(parents=True)
    folder = tmp_path / "night"
    (folder / "parts").mkdir(parents=True)
    return Night(folder, 60.0, op_names(), [], root=tmp_path)


def reported(night, records):
    """The report of a night whose sweep records this for both precisions."""
    (night.root / opinfo.SCRIPT).write_text(SWEEP.format(records=records))
    part = {"opinfo": opinfo.pytorch_gradients}
    return runner.report(runner.run(night, part), [])


@pytest.mark.parametrize(
    ("records", "code", "first"),
    [
        ([entry()], 0, "**All as expected**: 2 tensors of 1 OpInfo entries judged"),
        ([entry("disagree", "mul")], 0, "**All as expected**: 2 tensors"),
        ([entry("disagree")], 1, "**New: OpInfo foo on PyTorch: float64 dx disagree**"),
        ([], 3, "**Not judged: opinfo: nothing was judged in float64, float32**"),
        ([{**entry(), "samples": []}], 3, "**Not judged: opinfo: nothing was judged"),
        (None, 3, "**New: opinfo: float64: exit code 1** and 1 more"),
    ],
    ids=["right", "explained", "unexplained", "no entry", "no sample", "crashed"],
)
def test_the_first_line_and_the_exit_code_say_what_the_share_showed(
    night, records, code, first
):
    report = reported(night, records)
    assert report.exit_code == code
    assert markdown(report).startswith(first)


def test_a_defect_that_is_gone_and_a_sample_that_failed_are_noted(night):
    failed = [{"kind": "error", "why": "IndexError: planted"}] * 2
    failed += [{"kind": "complex", "why": ""}]
    (done,) = reported(night, [entry("agree", "mul", failed)]).parts
    assert done.notes == [
        "OpInfo foo, float64: not judged (error: IndexError: planted), 2 samples",
        "OpInfo foo, float32: not judged (error: IndexError: planted), 2 samples",
        "OpInfo foo agrees, though results/pytorch/mul.py lists a defect",
    ]


def test_after_a_kill_the_sweep_is_continued(night):
    (night.root / opinfo.SCRIPT).write_text("import os; os.kill(os.getpid(), 9)")
    opinfo.pytorch_gradients(night)
    reported(night, [entry()])
    calls = [
        json.loads(line)
        for line in (night.root / "calls.jsonl").read_text().splitlines()
    ]
    assert [call[0] for call in calls] == ["float64", "float32"]
    assert all("--continue" in call for call in calls)


@pytest.mark.parametrize("step", [1, 2, 7], ids=["nightly", "every other", "weekly"])
def test_every_share_comes_round(step):
    start = datetime.date(2026, 1, 1)
    nights = [start + datetime.timedelta(step * i) for i in range(opinfo.SHARES)]
    assert sorted(map(opinfo.share_of, nights)) == [*range(opinfo.SHARES)]


def test_a_run_for_some_ops_leaves_it_out_and_says_so(night):
    few = Night(**{**vars(night), "ops": ["square"]})
    assert "only some ops" in opinfo.pytorch_gradients(few).skipped


def test_only_this_checkout_has_the_part(tmp_path):
    assert "opinfo" not in parts.parts_of(tmp_path)
    assert "opinfo" in parts.parts_of(SOURCE)
