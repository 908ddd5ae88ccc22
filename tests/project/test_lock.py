"""One run at a time, and nothing is left of those that were killed."""

import os
import time
from pathlib import Path

import pytest

from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import STALE, Busy, alone


def test_two_at_once_are_refused(tmp_path):
    with (
        alone(tmp_path / "lock", "a night"),
        pytest.raises(Busy, match="a night is going on already"),
        alone(tmp_path / "lock", "a night"),
    ):
        pytest.fail("both run")
    with alone(tmp_path / "lock", "a night"):
        pass


@pytest.mark.parametrize(("age", "left"), [(STALE + 60, []), (60, [".a.json.x1"])])
def test_half_a_file_of_a_killed_run_goes_with_the_next_save(tmp_path, age, left):
    """What is young may be of a run that is still alive."""
    half = tmp_path / ".a.json.x1"
    half.write_text("half")
    then = time.time() - age
    os.utime(half, (then, then))
    documents.replace_file(tmp_path / "a.json", "whole")
    assert sorted(f.name for f in tmp_path.iterdir()) == [*left, "a.json"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no /proc here")
def test_nobody_waits_for_a_file_that_cannot_be_made():
    with pytest.raises(OSError, match="lock"), alone(Path("/proc/.lock"), "it", 1):
        pytest.fail("it was made")
