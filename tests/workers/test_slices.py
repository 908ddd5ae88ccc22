"""Slices of a core's time: shorter where the kernel can, and nothing else changes."""

import os
import platform
import subprocess
import sys

import pytest

from gradwatch.harness.workers import process

KERNEL = tuple(map(int, platform.release().split("-")[0].split(".")[:2]))
TAKES = KERNEL >= (6, 12) and platform.machine() in process._CALLS


@pytest.fixture
def sleeper():
    child = subprocess.Popen(
        [sys.executable, "-c", "import os; os.nice(3); print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    child.stdout.readline()
    yield child.pid
    child.communicate()


@pytest.mark.parametrize("seconds", [1e-4, 3e-4, 5e-3])
def test_a_thread_of_another_process_gets_shorter_slices(sleeper, seconds):
    """Where the kernel is too old, the number changes nothing."""
    before = process.slice_of(sleeper)
    assert process.shorten(sleeper, seconds) == (platform.machine() in process._CALLS)
    expected = seconds if TAKES else before
    assert process.slice_of(sleeper) == pytest.approx(expected)
    assert os.getpriority(os.PRIO_PROCESS, sleeper) == 3
    assert os.sched_getscheduler(sleeper) == os.SCHED_OTHER


def test_a_thread_of_another_policy_is_left_alone(sleeper):
    os.sched_setscheduler(sleeper, os.SCHED_BATCH, os.sched_param(0))
    assert not process.shorten(sleeper)
    assert os.sched_getscheduler(sleeper) == os.SCHED_BATCH


def test_a_thread_that_has_ended_or_an_unknown_machine_is_no_error(
    sleeper, monkeypatch
):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert not process.shorten(ended.pid)
    assert process.slice_of(ended.pid) == 0
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    assert not process.shorten(sleeper)
    assert process.slice_of(sleeper) == 0
