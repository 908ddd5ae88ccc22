"""What a fork for code of a page can change of what stays."""

import sys
import time
from pathlib import Path

import pytest

from gradwatch.harness.project.paths import SOURCE
from gradwatch.harness.workers.fork import Fork, writing_rules
from gradwatch.harness.workers.lifetime import Late

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")


def tried(content: bytes) -> bytes:
    """Change a file, or make one that is not there; then leave it as it was."""
    file = Path(content.decode())
    there = file.exists()
    try:
        with open(file, "r+b" if there else "xb"):
            pass
    except OSError as error:
        return type(error).__name__.encode()
    if not there:
        file.unlink()
    return b"written"


def test_a_fork_that_is_silent_too_long_is_said_to_be():
    """Not to have been killed: that was our doing."""
    fork = Fork(lambda content: time.sleep(60) or b"", patience=0.1)
    with pytest.raises(Late, match=r"no answer in 0\.1 s"):
        fork.ask(b"")


def answer(file: Path) -> str:
    fork = Fork(tried, lambda: None)
    try:
        return fork.ask(str(file).encode()).decode()
    finally:
        fork.end()


@pytest.mark.parametrize("name", ["pyproject.toml", "harness/new.py", "results/new"])
def test_a_fork_writes_to_nothing_of_ours(name):
    if writing_rules() < 0:
        pytest.skip("this kernel has no Landlock")
    assert answer(SOURCE / name) == "PermissionError"
    assert tried(str(SOURCE / name).encode()) == b"written", "it could before"


def test_a_fork_writes_temporary_files(tmp_path):
    (tmp_path / "there").touch()
    assert [answer(tmp_path / name) for name in ("there", "new")] == ["written"] * 2
