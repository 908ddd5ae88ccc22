"""Seven real bugs, each of which once agreed: the suite finds them on a page."""

from pathlib import Path

import pytest

from harness.agreement.suite import agree
from harness.judging.cases import trials
from harness.workers.evaluate import load_op
from tests.check.seven import BUGS

PAGE = """
from impls.contract import Case, Op
from tests.check.seven import candidate, square_times

op = Op("seven", inputs="x w",
    cases=[Case("4x5", x=(4, 5), w=(4, 5)), Case("2x3x4", x=(2, 3, 4), w=(2, 3, 4))])
apply = candidate({bug!r})

@op.implement("formula")
def formula(xp, x, w):
    return x * x * w

@op.implement("autograd")
def autograd(F, x, w):
    return apply(x, w)
"""
ROOT = Path(__file__).parents[2]


def records(tmp_path, monkeypatch, bug):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    page = tmp_path / "seven.py"
    page.write_text(PAGE.format(bug=bug))
    op = load_op(str(page))
    chosen = trials(op, dtypes=("float32",), source=str(page))
    return agree(chosen, ["torch_autograd"], jobs=1).unexpected


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_found(tmp_path, monkeypatch, bug):
    assert records(tmp_path, monkeypatch, bug)


def test_without_a_bug_nothing_is_found(tmp_path, monkeypatch):
    assert records(tmp_path, monkeypatch, "none") == []
