"""The campaign reports what is lost: each kind of fault has a broken subject here."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from gradwatch.harness.agreement.suite import Agreement
from gradwatch.harness.project.paths import ROOT
from tests.faults import campaign, disks, documents, kills, pages
from tests.faults.campaign import Fault, Kind
from tests.faults.documents import Reader
from tests.faults.kills import Command


def losses(faults) -> set[str]:
    return {loss for fault in faults for loss in fault.lost}


# Mutated documents ----------------------------------------------------------------


def _two(folder: Path) -> Path:
    for name in "ab":
        (folder / f"{name}.json").write_text('{"records": [1, 2]}')
    return folder / "a.json"


def _trusting(folder: Path) -> int:
    return len(json.loads((folder / "a.json").read_text())["records"]) - 2


def _all_or_nothing(folder: Path) -> int:
    try:
        return len([json.loads(f.read_text()) for f in sorted(folder.glob("*"))]) and 1
    except (ValueError, OSError, RecursionError):
        return 0


@pytest.mark.parametrize(
    ("read", "loss"), [(_trusting, "traceback"), (_all_or_nothing, "result lost")]
)
def test_a_reader_that_trusts_a_document_is_reported(tmp_path, read, loss):
    readers = {"planted": Reader(_two, read)}
    faults = [*documents.inject(20, Random(1), tmp_path, readers)]
    assert len(faults) == 20
    assert loss in losses(faults)


# Misbehaving pages ----------------------------------------------------------------


class _Record:
    def __init__(self, op, verdict="agree"):
        self.op, self.verdict, self.case, self.tensor = op, verdict, op, "dx"


class _Planted(Agreement):
    """Judgements that somebody invents."""

    exit_code = 0


def _green(paths):
    return _Planted([_Record(Path(path).stem) for path in paths] + [_Record("square")])


def _forgetful(paths):
    return _Planted([] if paths else [_Record("square")])


def _leaving(paths):
    if paths:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ended = [_Record(Path(path).stem, "crash") for path in paths]
    return _Planted([*ended, _Record("square")])


@pytest.mark.parametrize(
    ("judging", "loss"),
    [
        (_green, "exit 0 without judging"),
        (_forgetful, "result lost"),
        (_leaving, "process left"),
    ],
)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_judge_that_lets_a_page_through_is_reported(tmp_path, judging, loss):
    faults = [*pages.inject(5, Random(1), tmp_path, judging)]
    assert len(faults) == 5
    assert loss in losses(faults)


# Disks ----------------------------------------------------------------------------


def _in_place(file: Path, text: str) -> None:
    file.write_text(text)


def _silent(file: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        file.write_text(text)


def _nameless(file: Path, text: str) -> None:
    with file.open("w") as opened:
        opened.write(text)
        opened.flush()


@pytest.mark.parametrize(
    ("write", "loss"),
    [
        (_in_place, "result lost"),
        (_silent, "exit 0 without judging"),
        (_nameless, "traceback"),
    ],
)
def test_a_writer_that_replaces_in_place_is_reported(tmp_path, write, loss):
    faults = [*disks.inject(6, Random(1), tmp_path, {"planted": write})]
    assert loss in losses(faults)


# Kills ----------------------------------------------------------------------------

#: Writes half of a document, leaves a process that goes on, and says that all is well
#: however the process that it started last has ended.
BROKEN = """
import subprocess, sys, time
open("out.json", "w").write('{"schema": 1, "environment"')
nap = "import time; time.sleep(60)"
subprocess.Popen([sys.executable, "-c", nap], start_new_session=True)
try:
    subprocess.run([sys.executable, "-c", "import time; time.sleep(2.5)"], check=True)
except subprocess.CalledProcessError:
    print("Traceback (most recent call last)")
    sys.exit(0)
open("out.json", "w").write('{"schema": 1, "environment": {}, "records": [1]}')
"""


class _Fixed(Random):
    """Kills at one moment the one process or the one started last."""

    def __init__(self, itself):
        self.itself = itself
        super().__init__(1)

    def random(self):
        return 0.1 if self.itself else 0.9

    def uniform(self, low, high):
        return 1.3

    def choice(self, several):
        return several[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("itself", "reported"),
    [
        (True, {"result lost", "process left"}),
        (False, {"exit 0 without judging", "process left", "traceback"}),
    ],
)
def test_a_command_that_loses_all_is_reported(tmp_path, monkeypatch, itself, reported):
    monkeypatch.setattr(kills.project, "made", lambda folder: folder)
    monkeypatch.setattr(kills, "_nothing_kept", lambda root: None)
    commands = {"planted": Command(("-c", BROKEN), ("out.json",))}
    faults = [*kills.inject(1, _Fixed(itself), tmp_path, commands)]
    assert losses(faults) >= reported


# The table ------------------------------------------------------------------------


def test_the_table_counts_injected_survived_and_lost(tmp_path):
    def inject(count, random, folder):
        for number in range(count):
            lost = {"traceback": "here"} if number == 0 else {}
            yield Fault(f"fault {number}", lost)

    kinds = [Kind("one", 0.75, inject), Kind("other", 0.25, inject)]
    done = campaign.run(kinds, 8, 1, tmp_path)
    assert campaign.table(done).splitlines()[-1] == "| all | 8 | 6 | 0 | 0 | 0 | 2 |"
    assert campaign.lost(done)[0] == "traceback: one: fault 0: here"


def test_a_seed_gives_the_same_faults_again(tmp_path):
    readers = {"planted": Reader(_two, _trusting)}
    first, second = (
        [*documents.inject(9, Random("1 a"), _folder(tmp_path / name), readers)]
        for name in "ab"
    )
    assert first == second


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)  # less than a minute, but for a machine that is busy
def test_a_short_campaign_loses_nothing():
    call = [sys.executable, "-m", "tests.faults", "--faults", "20", "--seed", "11"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 faults of seed 11, 0 losses" in done.stdout
