"""A log is told that the work goes on."""

import re
import time

from gradwatch.harness.console import terminal
from gradwatch.harness.console.terminal import progress


def test_where_there_is_no_terminal_lines_say_how_far_the_work_is(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "EVERY", 0.05)
    with progress("judging") as advance:
        advance(3, 7)
        time.sleep(0.2)  # in one long step
    told = capsys.readouterr().err.splitlines()
    assert len(told) >= 2
    assert all(
        re.fullmatch(r"gradwatch: judging: 3 of 7, \d+ s left, \d+ s", line)
        for line in told
    )
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_line_that_another_program_has_begun_is_ended_once(capsys, monkeypatch):
    monkeypatch.setattr(terminal, "EVERY", 0.05)
    asked = []

    def what():
        asked.append(1)
        return "measuring"

    with terminal.ticking(what, before="\n"):
        while len(asked) < 2:
            time.sleep(0.01)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == ""
    assert len(lines) == len(asked)
    assert all(line.startswith("gradwatch: measuring, ") for line in lines)
