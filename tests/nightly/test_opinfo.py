"""The night judges a share of PyTorch's gradients; only what is unexplained is new."""

import datetime

import pytest

from gradwatch.harness.nightly import parts, runner
from gradwatch.harness.nightly.night import Night, Report
from gradwatch.harness.nightly.report import markdown
from gradwatch.harness.project.paths import SOURCE
from gradwatch.impls.catalogue import op_names


@pytest.fixture
def night(tmp_path):
    """A night whose sweep is still to be planted."""
    (tmp_path / parts.OPINFO).parent.mkdir(parents=True)
    return Night(tmp_path / "night", 60.0, op_names(), [], root=tmp_path)


@pytest.mark.parametrize(
    ("sweep", "code", "first"),
    [
        ("print(argv[1] + ': 9 judged')", 0, "**All as expected**: float64: 9 judged"),
        (
            "print('float64: without a finding: foo'); exit(argv[1] == 'float64')",
            *(1, "**New: OpInfo on PyTorch: float64: without a finding: foo**"),
        ),
        ("exit('RuntimeError: planted')", 1, "**New: OpInfo on PyTorch: RuntimeError"),
    ],
    ids=["right", "unexplained", "crashed"],
)
def test_the_first_line_and_the_exit_code_say_what_the_share_showed(
    night, sweep, code, first
):
    (night.root / parts.OPINFO).write_text(f"from sys import argv, exit; {sweep}")
    part = {"opinfo": parts.pytorch_gradients}
    report = Report(runner.run(night, part), [])
    assert report.exit_code == code
    assert markdown(report).startswith(first)


@pytest.mark.parametrize("step", [1, 2, 7], ids=["nightly", "every other", "weekly"])
def test_every_share_comes_round(step, monkeypatch):
    nights = iter(range(738_000, 738_000 + step * parts.SHARES, step))

    class Date(datetime.date):
        @classmethod
        def today(cls):
            return cls.fromordinal(next(nights))

    monkeypatch.setattr(parts.datetime, "date", Date)
    shares = [parts._share() for _ in range(parts.SHARES)]
    assert sorted(shares) == [*range(parts.SHARES)]


def test_a_run_for_some_ops_leaves_it_out_and_says_so(night):
    few = Night(**{**vars(night), "ops": ["square"]})
    assert "only some ops" in parts.pytorch_gradients(few).skipped


def test_only_this_checkout_has_the_part(tmp_path):
    assert "opinfo" not in parts.parts_of(tmp_path)
    assert "opinfo" in parts.parts_of(SOURCE)
