"""A job in a process of its own, which a page can end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.process import Child, Link


class Said(msgspec.Struct):
    """Of an op: the child that answered."""

    op: str
    pid: int


def job(content: bytes, link: Link) -> None:
    """Say who answers; the names of ops say what their pages do."""
    for op in msgspec.msgpack.decode(content, type=list[str]):
        with link.at(op):
            sys.stdout.write("a page's own words")
            os.write(1, b"a page's own words")
            if op == "abort":
                os.abort()
            if op == "exit":
                sys.exit(3)
            if op == "fork" and not os.fork():
                os.closerange(0, 3)  # which whoever runs this test waits for
                time.sleep(90)
                os._exit(0)
            if op == "fork":
                os._exit(0)
            link.tell(Said(op, os.getpid()))


def main(case: str) -> None:
    """What a case says, as JSON."""
    with Child(job) as child:
        if case == "orphan":
            child.ask([])
            say([one.pid for one in psutil.Process().children()])
            os.kill(os.getpid(), signal.SIGKILL)
        found = list(child.run(CASES[case], list, Said))
    say([msgspec.to_builtins(one) for one in found])


CASES = {
    "one": ["one"],
    "ends": ["one", "exit", "abort", "two"],
    "forks": ["fork", "two"],
}


def say(found: object) -> None:
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()


def run(case: str) -> list[dict[str, object]]:
    """What a process says that has no threads but its own."""
    code = f"from tests.workers.test_process import main; main({case!r})"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr
    said: list[dict[str, object]] = json.loads(done.stdout)
    return said


def test_the_child_says_nothing_in_the_commands_place() -> None:
    """Else the page's words would stand before the JSON."""
    (one,) = run("one")
    assert one["op"] == "one"
    assert not psutil.pid_exists(int(str(one["pid"])))


def test_a_page_that_ends_the_child_costs_its_op_alone() -> None:
    one, raised, ended, *again = run("ends")  # whoever asks knows what is answered
    assert one["op"] == "one"
    assert (raised["op"], raised["verdict"]) == ("exit", "error")
    assert (ended["op"], ended["verdict"]) == ("abort", "crash")
    assert "killed by SIGABRT" in str(ended["message"])
    assert [one["op"] for one in again] == ["one", "exit", "two"]


def test_a_process_that_a_page_has_forked_does_not_keep_the_pipe() -> None:
    started = time.monotonic()
    ended, two = run("forks")
    assert (ended["op"], ended["verdict"]) == ("fork", "crash")
    assert two["op"] == "two"
    assert time.monotonic() - started < 80


@pytest.mark.skipif(sys.platform != "linux", reason="others end when they are idle")
def test_the_child_ends_with_the_command() -> None:
    code = "from tests.workers.test_process import main; main('orphan')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    (pid,) = json.loads(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
