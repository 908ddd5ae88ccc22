"""A page that leaves work on another stream of a GPU earns no figure.

On a GPU that is played (tests/cuda_stand_in.py), and on one that is there.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.timing import handlers, proof, timers
from gradwatch.harness.timing.compare import time_trial
from gradwatch.harness.timing.timers import _busy
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.pool import Outcome
from gradwatch.impls.catalogue import load_backend, load_op
from tests.agreed import agree

FOLDER = Path(__file__).parent / "attacks" / "streams"
PAGES = {page.stem: page for page in sorted(FOLDER.glob("[a-z]*.py"))}
BACKEND, SIZE = "torch_custom", "65536"
#: Nothing at all is between two events of a page that leaves the stream at once.
SHOWN = "its timer shows|which is impossible"
SEEN = {
    "left_on_a_stream": SHOWN,
    "timed_on_a_stream": SHOWN,
    "patched_event": "has been replaced",
}


@pytest.fixture
def gpu(monkeypatch):
    """A played one, whose clock is that of both processes."""
    pytest.importorskip("torch")
    load_backend(BACKEND)
    from tests.cuda_stand_in import Device, Event, installed

    device = Device()
    monkeypatch.setattr(handlers, "time", device.clock)
    monkeypatch.setattr(timers, "time", device.clock)
    monkeypatch.setattr(proof, "_now", device.clock.perf_counter)
    monkeypatch.setattr(Event, "elapsed_time", Event.elapsed_time)  # if one patches it
    _busy.cache_clear()
    with installed(device):
        integrity.remember("torch")  # before any page is read
        yield device
    handlers.release({})
    _busy.cache_clear()


def trial_of(name, case=SIZE):
    op = load_op(str(PAGES[name]))
    known = op.sizes.get(case) or op.cases[case]
    return trial(op, known, REGIMES["normal"], "float32", 0, str(PAGES[name]))


def refusal(name):
    """Why a page gets no figure on the played GPU, or ""."""
    from tests.timing.doors import Played

    line = Played()
    records, untimed = time_trial(
        trial_of(name), [BACKEND], lambda _: line, device="cuda", budget=0.1
    )
    assert bool(records) != bool(untimed)
    return untimed.get(BACKEND, "")


class PlayedFleet:
    """Workers that are this very process."""

    def run(self, tasks, timeout):
        from tests.timing.doors import Played

        for task in tasks:
            reply = Played().reply(task.request, **task.payload())
            yield Outcome.of(task, reply, "")


def verdicts(name, case):
    fleet = PlayedFleet()
    one = trial_of(name, case)
    agreed = agree([one], [BACKEND], devices=("cuda",), entries=(), fleet=fleet)
    return {record.tensor: record.verdict for record in agreed.records}


def test_each_page_is_an_attack_or_a_control():
    assert set(PAGES) == {*SEEN, "honest_stream"}


#: Seconds that the host takes to queue a kernel, which takes the device 1e-4: what a
#: call leaves on another stream is done before a slow host has queued the next one.
LAUNCHES = pytest.mark.parametrize("launch", [2e-6, 6e-5])


@LAUNCHES
@pytest.mark.parametrize("name", SEEN)
def test_an_attack_on_a_played_gpu_earns_no_figure_and_the_reason_names_it(
    gpu, monkeypatch, name, launch
):
    monkeypatch.setattr("tests.cuda_stand_in.LAUNCH", launch)
    assert re.search(SEEN[name], refusal(name))


@LAUNCHES
def test_work_on_a_stream_that_the_current_one_waits_for_earns_one(
    gpu, monkeypatch, launch
):
    monkeypatch.setattr("tests.cuda_stand_in.LAUNCH", launch)
    assert refusal("honest_stream") == ""


@pytest.mark.parametrize(
    ("name", "case", "verdict"),
    [
        ("left_on_a_stream", "3x4", "nonfinite"),
        ("timed_on_a_stream", "3x4", "agree"),
        ("timed_on_a_stream", SIZE, "nonfinite"),
        ("honest_stream", SIZE, "agree"),
    ],
)
def test_a_result_that_is_read_too_early_is_judged_as_it_is_read(
    gpu, name, case, verdict
):
    """The planted missing wait: the played GPU hands out NaN for it."""
    assert verdicts(name, case)["dx"] == verdict


def test_the_attack_succeeds_where_the_host_does_not_wait_for_all_streams(
    gpu, monkeypatch
):
    """The defence is the second wait: without it the attack has a figure."""
    monkeypatch.setattr(handlers, "_shown_by_events", lambda *_: 1.0)
    monkeypatch.setattr(integrity, "changes", lambda _="": [])  # of that one
    assert refusal("timed_on_a_stream") == ""


@pytest.mark.cuda
@pytest.mark.skipif(not has_cuda(), reason="no GPU on this machine")
@pytest.mark.parametrize("name", PAGES)
def test_on_a_real_gpu_attacks_earn_no_figure_and_the_control_does(name):
    """At a size whose hidden work takes the GPU long enough to be seen."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "gradwatch", "time", "--device", "cuda"),
            *("--ops", PAGES[name], "--size", "16777216", "--dtype", "float32"),
            *("--backend", BACKEND, "--budget", "0.5", "--json", "-"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    document = json.loads(done.stdout)
    assert bool(document["records"]) == (name not in SEEN), document["summary"]
