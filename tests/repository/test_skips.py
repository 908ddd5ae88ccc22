"""Green means judged here, too: under CI nothing is skipped that could be had."""

import os
import subprocess
import sys

import pytest

from gradwatch.harness.project.paths import ROOT

GPU = "torch sees no CUDA device here"
REASONS = ("no chromium here", "could not import 'torch'", "OneFlow is not there", GPU)
PLANTED = f"""
import pytest

@pytest.mark.parametrize("reason", {REASONS!r})
def test_that_is_skipped(reason):
    pytest.skip(reason)
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What a run prints in which a test is skipped for each reason: with CI, without.

    A line names each test and its outcome.
    """
    folder = tmp_path_factory.mktemp("skipped")
    (folder / "test_planted.py").write_text(PLANTED)
    (settings := folder / "pytest.ini").write_text("[pytest]\n")

    def run(ci):
        outside = {
            k: v for k, v in os.environ.items() if k != "CI" and "PYTEST" not in k
        }
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-v"),
                *("-p", "no:cacheprovider", "-c", settings, folder),
            ],
            cwd=ROOT,
            env={**outside, **({"CI": "true"} if ci else {})},
            capture_output=True,
            text=True,
        )
        return done.stdout

    return {ci: run(ci) for ci in (True, False)}


@pytest.mark.parametrize("reason", [reason for reason in REASONS if reason != GPU])
def test_a_test_skipped_for_what_can_be_had_fails_under_ci(outcomes, reason):
    assert f"test_that_is_skipped[{reason}] FAILED" in outcomes[True]
    assert f"test_that_is_skipped[{reason}] SKIPPED" in outcomes[False]


def test_a_test_skipped_for_want_of_a_gpu_is_counted_with_its_reason(outcomes):
    assert f"test_that_is_skipped[{GPU}] SKIPPED" in outcomes[True]
    assert f"skipped: 1 ({GPU})" in outcomes[True]
