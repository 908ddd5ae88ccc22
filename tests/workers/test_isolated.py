"""A job in a child that is a copy of the command, or a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.isolated import Isolated, Link

#: A copy has the command's own.
marked = False

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="copies are Linux's")


class Said(msgspec.Struct):
    """Of an op: the child that answered, and whether it is a copy."""

    op: str
    pid: int
    copy: bool


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
            link.tell(Said(op, os.getpid(), marked))


def main(case: str) -> None:
    """In a process without threads: what a case says, as JSON."""
    global marked  # a copy has it, another process has not
    marked = True
    if case == "thread":
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    with Isolated(job) as child:
        child.start(foreign=case == "foreign")
        if case == "orphan":
            say([one.pid for one in psutil.Process().children()])
            os.kill(os.getpid(), signal.SIGKILL)
        ops = ["one", "exit", "abort", "two"] if case == "ends" else ["one"]
        found = list(child.run(ops, list, Said))
        if case == "leave":
            child.leave()
            found += child.run(["two"], list, Said)
    say([msgspec.to_builtins(one) for one in found])


def say(found: object) -> None:
    sys.stdout.write(json.dumps(found))
    sys.stdout.flush()


def run(case: str) -> list[dict[str, object]]:
    """What a process says that has no threads but its own."""
    code = f"from tests.workers.test_isolated import main; main({case!r})"
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


def copies(said: Sequence[dict[str, object]]) -> list[object]:
    return [one["copy"] for one in said]


@needs_fork
def test_the_child_is_a_copy_and_says_nothing_in_the_commands_place() -> None:
    """Else the page's words would stand before the JSON."""
    assert copies(run("")) == [True]


@pytest.mark.parametrize("case", ["thread", "foreign"])
def test_beside_a_thread_or_for_a_strangers_page_it_is_no_copy(case: str) -> None:
    assert copies(run(case)) == [False]


@needs_fork
def test_a_page_that_ends_the_copy_costs_its_op_alone() -> None:
    """The child after it is a process of its own."""
    one, raised, ended, *again = run("ends")  # whoever asks knows what is answered
    assert (one["op"], one["copy"]) == ("one", True)
    assert (raised["op"], raised["verdict"]) == ("exit", "error")
    assert (ended["op"], ended["verdict"]) == ("abort", "crash")
    assert "killed by SIGABRT" in str(ended["message"])
    assert [one["op"] for one in again] == ["one", "exit", "two"]
    assert not any(one.get("copy") for one in again)


def test_a_child_that_was_let_go_is_followed_by_another() -> None:
    one, two = run("leave")
    assert (one["op"], two["op"]) == ("one", "two")
    assert one["pid"] != two["pid"]
    assert not any(psutil.pid_exists(int(str(said["pid"]))) for said in (one, two))


@needs_fork
def test_the_copy_ends_with_the_command() -> None:
    code = "from tests.workers.test_isolated import main; main('orphan')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    (pid,) = json.loads(done.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(f"/proc/{pid}").exists()
