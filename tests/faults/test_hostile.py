"""Hostile files: one line each, within two seconds and a gigabyte."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from pathlib import Path
from random import Random

import pytest

from gradwatch.harness import __main__ as command_line
from gradwatch.harness.agreement import suite
from gradwatch.harness.console.terminal import say
from gradwatch.harness.dashboard import matrix, site
from gradwatch.harness.history import asv_results
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import AGREE, AgreeRecord, AgreeSummary
from tests.dashboard.browser import invented
from tests.faults import hostile

MACHINE = invented.MACHINE
#: What each command reads, below the results folder.
READ = {
    "watch": (
        f"asv/{MACHINE}/{invented.commit(3)[:8]}-prebuilt-py3.11.json",
        f"asv/{MACHINE}/machine.json",
        "asv/benchmarks.json",
    ),
    "report": (
        f"asv/{MACHINE}/{invented.commit(3)[:8]}-prebuilt-py3.11.json",
        f"asv/{MACHINE}/machine.json",
        "asv/benchmarks.json",
        "latest/agree.json",
        "latest/time.json",
        "latest/compare.json",
        "findings/index.json",
    ),
    "agree": ("latest/agree.json.gz",),
}


def made(folder: Path) -> Path:
    results = folder / "results"
    invented.write_history(results, 8, ops=["add"])
    invented.write_time(results, 5)
    invented.write_finding(results, "add")
    rows = [invented.agree_record("add", "numpy_manual")] * 2
    about = invented.environment(1)
    for name in ("agree.json", "agree.json.gz"):
        file = results / "latest" / name
        invented.write_document(file, rows, about, missing={}, pairs={})
        file.write_bytes(documents.bytes_of(file))
    return results


def run(command: str, results: Path) -> int:
    """Read the results, as that command does."""
    if command == "agree":
        documents.LATEST = results / "latest"
        given = {**invented.agree_record("mul", "numpy_manual")}
        now = documents.document([AgreeRecord(**given)], AgreeSummary())
        if why := documents.keep(AGREE, now, suite.combined):
            say(why)
        return 0
    output = ["--output", str(results.parent / "html")] if command == "report" else []
    sys.argv = ["gradwatch", command, "--results", str(results), *output]
    return command_line._exit_code()


@pytest.fixture
def sound(tmp_path, monkeypatch):
    """What each command does with sound results; all that they import is loaded."""
    monkeypatch.setattr(matrix, "op_names", lambda: ("add",))  # a quick site
    monkeypatch.setenv("COLUMNS", "100000")  # one warning is one line
    monkeypatch.delenv(documents.VARIABLE, raising=False)
    results = made(tmp_path / "sound")
    site.write_site(results, tmp_path / "html")
    return {
        command: hostile.seen(partial(run, command, results), tmp_path)
        for command in READ
    }


FILES = 15  # with 200 each was one line


@pytest.mark.slow
def test_a_hostile_file_is_one_line_within_two_seconds_and_a_gigabyte(tmp_path, sound):
    random, wrong = Random(0), {}
    for number in range(FILES):
        folder = tmp_path / "now"
        results = made(folder)
        command = random.choices([*READ], (4, 1, 4))[0]
        name = random.choice(READ[command])
        how = hostile.spoilt(results / name, random)
        seen = hostile.seen(partial(run, command, results), folder, sound[command])
        if faults := [*hostile.faults_of(seen)]:
            wrong[f"{number}: {command}, {name}, {how}"] = faults, seen.said[-300:]
        shutil.rmtree(folder)
    assert wrong == {}


def _loops() -> int:
    while True:
        pass


def _says(text: str, code: int = 0) -> int:
    say(text)
    return code


@pytest.mark.parametrize(
    ("run", "fault"),
    [
        (_loops, "exit code -24"),
        (lambda: len(bytes(8 * hostile.BYTES)), "a traceback"),
        (lambda: 1 // 0, "a traceback"),
        (lambda: _says("one\ntwo"), "2 lines"),
        (lambda: _says("wrong", 1), "exit code 1"),
        (lambda: 2, "0 lines"),
        (lambda: _says("\x1b[31m"), "control characters"),
    ],
)
def test_a_command_that_takes_a_file_badly_is_reported(tmp_path, run, fault):
    fine = hostile.Seen(0, 0.0, "")
    assert fault in [*hostile.faults_of(hostile.seen(run, tmp_path, fine))]


def test_a_damaged_machine_is_one_trouble_however_many_commits_it_has(tmp_path):
    results, troubles = made(tmp_path), list[documents.Unreadable]()
    (results / "asv" / MACHINE / "machine.json").write_text("{")
    assert asv_results.read(results / "asv", [], troubles) == ()
    (line,) = map(str, troubles)
    assert "machine.json: not readable as JSON" in line
