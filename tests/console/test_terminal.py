"""An interrupt is heard wherever it comes; a log is told that the work goes on."""

import gc
import os
import re
import signal
import time

import pytest

from gradwatch.harness.console import terminal
from gradwatch.harness.console.terminal import progress


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost():
    def interrupt(phase, info):
        gc.callbacks.remove(interrupt)
        os.kill(os.getpid(), signal.SIGINT)

    with progress("looking") as advance:
        gc.callbacks.append(interrupt)
        gc.collect()  # Python drops what is raised in a callback
        with pytest.raises(KeyboardInterrupt):
            advance(1, 2)


def test_an_interrupt_is_raised_where_it_comes_and_the_old_handler_returns():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), progress("looking"):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


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
