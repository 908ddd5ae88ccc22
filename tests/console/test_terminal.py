"""A terminal and a log are told that the work goes on."""

import io
import re
import threading
import time

from gradwatch.harness.console import streams
from gradwatch.harness.console.terminal import progress, say, show_grouped


def test_where_there_is_no_terminal_lines_say_how_far_the_work_is(capsys, monkeypatch):
    monkeypatch.setattr(streams, "EVERY", 0.05)
    with progress("judging") as advance:
        advance(3, 7)
        time.sleep(0.2)  # in one long step
    told = capsys.readouterr().err.splitlines()
    assert len(told) >= 2
    assert all(
        re.fullmatch(r"gradwatch: judging: 3 of 7, \d+ s", line) for line in told
    )
    time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_the_line_that_another_program_has_begun_is_ended_once(capsys, monkeypatch):
    monkeypatch.setattr(streams, "EVERY", 0.05)
    asked = []

    def what():
        asked.append(1)
        return "measuring"

    with streams.ticking(what, before="\n"):
        while len(asked) < 2:
            time.sleep(0.01)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == ""
    assert len(lines) == len(asked)
    assert all(line.startswith("gradwatch: measuring, ") for line in lines)


class Terminal(io.StringIO):
    """A standard error that says that it is one."""

    def isatty(self):
        return True


def terminal(monkeypatch):
    """A terminal of forty columns in place of standard error."""
    monkeypatch.setenv("COLUMNS", "40")
    for name in ("SILENT", "EACH", "EVERY"):
        monkeypatch.setattr(streams, name, 0.01)
    monkeypatch.setattr("sys.stderr", seen := Terminal())
    return seen


def test_a_terminal_sees_one_line_written_anew_and_gone_at_the_end(monkeypatch):
    seen, written = terminal(monkeypatch), threading.Event()

    def what():
        if seen.getvalue():
            written.set()
        return "normal 4x8, 1 of 3 trials"

    with streams.ticking(what):
        assert written.wait(60)
        say("found")
    assert "\r\033[Kgradwatch: normal 4x8, 1 of 3 trials, " in seen.getvalue()
    assert "\r\033[Kfound\n" in seen.getvalue(), "and it stands on its own line"
    assert seen.getvalue().endswith("\r\033[K")
    assert all(len(line) < 40 for line in seen.getvalue().split("\r\033[K"))


def test_a_terminal_sees_no_line_that_is_for_logs_alone(monkeypatch):
    seen = terminal(monkeypatch)
    with streams.ticking(lambda: "measuring", terminal=False):
        time.sleep(0.05)
    assert seen.getvalue() == ""


def test_what_is_left_takes_no_longer_than_to_the_limit(capsys, monkeypatch):
    monkeypatch.setattr(streams, "EVERY", 0.01)
    with progress("comparing", limit=20.0) as advance:
        time.sleep(0.1)
        advance(1, 1000)  # the others would take a hundred seconds
        time.sleep(0.1)
    rest = {int(n) for n in re.findall(r"(\d+) s left", capsys.readouterr().err)}
    assert rest
    assert max(rest) <= 20


def test_a_step_that_takes_longer_than_was_estimated_has_no_seconds_left(
    capsys, monkeypatch
):
    """A comparison said `0 s left` for a minute."""
    monkeypatch.setattr(streams, "EVERY", 0.01)
    with progress("timing", limit=0.1) as advance:
        advance(1, 2)
        time.sleep(0.2)
    said = capsys.readouterr().err
    assert "timing: 1 of 2, 0 s\n" in said
    assert "left" not in said


def test_no_cell_of_a_table_is_cut_and_the_name_of_a_group_is_one_line(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "20")
    name = "scaled_dot_product_attention [1] float32"
    rows = [["forward", "[red]slower[/]", "123.457"], ["backward", "faster", "0.5"]]
    show_grouped("of [b]", ["", "verdict", "ratio"], {name: rows, "dot": rows[:1]})
    assert capsys.readouterr().out.splitlines() == [
        "of [b]",
        "            verdict    ratio",
        name,
        "  forward    slower  123.457",
        "  backward   faster      0.5",
        "dot",
        "  forward    slower  123.457",
    ]
