"""Green means judged here, too: under CI nothing is skipped that could be had."""

import os
import subprocess
import sys

import pytest

from harness.project.paths import ROOT

PLANTED = """
import pytest

def test_that_is_skipped():
    pytest.skip({reason!r})
"""


@pytest.fixture
def outcome(tmp_path):
    """The last line of a run in which one test is skipped for a reason."""

    def run(reason, ci):
        (tmp_path / "test_planted.py").write_text(PLANTED.format(reason=reason))
        outside = {
            k: v for k, v in os.environ.items() if k != "CI" and "PYTEST" not in k
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-q"),
                *("-p", "no:cacheprovider", "-c", os.devnull, tmp_path),
            ],
            cwd=ROOT,
            env={**outside, **({"CI": "true"} if ci else {})},
            capture_output=True,
            text=True,
        )
        return done.stdout

    return run


@pytest.mark.parametrize(
    "reason", ["no chromium here", "could not import 'torch'", "OneFlow is not there"]
)
def test_a_test_skipped_for_what_can_be_had_fails_under_ci(outcome, reason):
    assert "1 failed" in outcome(reason, ci=True)
    assert "1 skipped" in outcome(reason, ci=False)


def test_a_test_skipped_for_want_of_a_gpu_is_counted_with_its_reason(outcome):
    reason = "torch sees no CUDA device here"
    output = outcome(reason, ci=True)
    assert "1 skipped" in output
    assert f"skipped: 1 ({reason})" in output
