"""The verdict on an op and a backend, from those on its tensors."""

import pytest

from gradwatch.harness.agreement.output import overall
from gradwatch.harness.project.records import AgreeRecord
from tests.dashboard.browser.invented import agree_record


def record(verdict, ratio=1.0, **fields):
    return AgreeRecord(
        **agree_record("exp2", "x", verdict=verdict, ratio=ratio, **fields)
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["agree", "convention", "vacuous", "unsupported"], "agree"),
        (["agree", "imprecise", "vacuous"], "imprecise"),
        (["unsupported", "imprecise"], "imprecise"),
        (["agree", "imprecise", "disagree"], "disagree"),
        (["vacuous", "unsupported"], "vacuous"),
        (["unsupported"], "unsupported"),
    ],
)
def test_one_tensor_that_is_not_quite_right_is_the_verdict_on_all(verdicts, expected):
    assert overall([record(verdict) for verdict in verdicts]).verdict == expected


def test_of_an_imprecise_backend_the_imprecise_error_is_shown():
    right, loose = record("agree", ratio=9.0), record("imprecise", ratio=4.0)
    assert overall([right, loose]).worst is loose
