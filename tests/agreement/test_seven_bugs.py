"""Seven real bugs, each of which once agreed: the suite finds them on a page."""

from pathlib import Path

import pytest

from gradwatch.harness.judging.cases import trials
from gradwatch.impls.catalogue import load_op
from tests.agreed import agree
from tests.check.seven import BUGS

PAGE = """
from gradwatch.impls.contract import Case, Op
from tests.check.seven import candidate, square_times

op = Op({bug!r}, inputs="x w",
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


@pytest.fixture(scope="module")
def unexpected(tmp_path_factory):
    """The op pages of which something was unexpected; a worker judges them all."""
    folder, chosen = tmp_path_factory.mktemp("seven"), []
    for bug in (*BUGS, "none"):
        page = folder / f"{bug.replace(' ', '_')}.py"
        page.write_text(PAGE.format(bug=bug))
        chosen += trials(load_op(str(page)), dtypes=("float32",), source=str(page))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        found = agree(chosen, ["torch_autograd"])
    assert {r.op for r in found.records} == {*BUGS, "none"}
    return {record.op for record in found.unexpected}


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_is_found(unexpected, bug):
    assert bug in unexpected


def test_without_a_bug_nothing_is_found(unexpected):
    assert "none" not in unexpected
