"""Times of what agrees, and of nothing else; comparisons that tell no news of noise."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.records import TimeRecord
from gradwatch.harness.timing import compare
from gradwatch.harness.timing.compare import (
    Plan,
    Side,
    compare_phases,
    prepare_steps,
    remote_sample,
    time_trial,
    workers,
)
from gradwatch.harness.timing.proof import RESTLESS
from gradwatch.harness.timing.samples import Comparison, Estimate, verdict_on
from gradwatch.harness.workers import worker
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import load_op
from tests.command_line import gradwatch
from tests.frameworks import usable
from tests.pages import plant

NUMPY = ("numpy_graph", "numpy_manual")
_BOTH = ("--backend", ",".join(NUMPY))
SCHEMA = {
    *("op", "case", "backend", "device", "dtype", "phase", "seconds", "low", "high"),
    *("samples", "bytes", "flops"),
}


def square(size="1024"):
    op = load_op("square")
    return trial(op, op.sizes[size], REGIMES["normal"], "float32")


@pytest.fixture(scope="module")
def timed():
    with workers() as line:
        return time_trial(square(), NUMPY, line, budget=1)


def test_each_backend_has_a_record_for_each_phase(timed):
    records, untimed = timed
    assert not untimed
    assert sorted((r.backend, r.phase) for r in records) == [
        (backend, phase) for backend in NUMPY for phase in ("backward", "forward")
    ]
    assert set(TimeRecord.__struct_fields__) >= SCHEMA


def test_the_median_lies_in_its_interval_and_samples_are_kept(timed):
    for record in timed[0]:
        assert 0 < record.low <= record.seconds <= record.high
        short = any("budget too short" in doubt for doubt in record.doubts)
        assert len(record.samples) > 5 or short  # beside other work
        assert min(record.samples) <= record.seconds <= max(record.samples)
        assert record.first > record.seconds


def test_a_wrong_gradient_is_not_timed(tmp_path):
    page = plant(tmp_path, "(3 * x**2 * dy,)", "(3 * x * dy,)")
    done = gradwatch(
        *("time", "--ops", page, "--budget", "0.2", "--json", "-"),
        *("--backend", "numpy_manual", "--backend", "numpy_graph"),
    )
    document = json.loads(done.stdout)
    assert {r["backend"] for r in document["records"]} == {"numpy_graph"}
    assert done.returncode == 1
    ((what, why),) = document["summary"]["untimed"].items()
    assert what == "cube 8 float32 numpy_manual"
    assert why.startswith("disagree: dx[")


def test_a_wrong_gradient_is_the_last_word_of_a_timing(tmp_path):
    page = plant(tmp_path, "(3 * x**2 * dy,)", "(3 * x * dy,)")
    done = gradwatch("time", "--ops", page, *_BOTH, "--budget", "0.2")
    following = done.stdout.splitlines()[-1]
    assert done.returncode == 1
    assert "wrong: cube on numpy_manual" in " ".join(done.stdout.split())
    assert following.startswith("next: gradwatch agree --op cube")
    assert done.stderr.count("cube on numpy_manual: disagree: dx[") == 1


def test_both_phases_are_timed_in_the_same_pairs_of_processes(monkeypatch):
    """Starting a process takes longer than timing in it."""
    pairs = []

    def played(a, b, plan, order, judge, phases, first):
        pairs.append(tuple(phases))
        ratios = {"forward": 0.0, "backward": 0.5 if len(pairs) % 2 else 0.0}
        return {phase: played_pair(ratios[phase], 0.0) for phase in phases}

    monkeypatch.setattr(compare, "_one_pair", played)
    a, b = Side("a", "numpy_manual"), Side("b", "numpy_manual", compare.ROOT / "other")
    plan = Plan(square(), 1.0, pairs=16)
    found = compare.compare_phases(a, b, plan, ["forward", "backward"])
    assert [one.phase for one in found] == ["forward", "backward"]
    assert found[0].pairs < 16  # it is clear that nothing differs
    assert found[1].pairs == 16 == len(pairs)
    assert pairs[0] == ("forward", "backward")
    assert pairs[-1] == ("backward",)


def test_a_size_that_no_op_has_is_answered_with_those_there_are():
    done = gradwatch("time", "--op", "square", "--size", "1023")
    assert done.returncode == 2
    assert "1024" in done.stderr


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_backend_against_itself_shows_no_news(phase):
    """One process, interleaved: the ratio is near 1, whatever else runs."""
    side = Side("numpy_manual", "numpy_manual")
    (found,) = compare_phases(side, side, Plan(square(), budget=0.4), [phase])
    assert found.pairs == 1
    assert found.low <= found.ratio <= found.high
    assert abs(math.log(found.ratio)) < 0.2
    assert found.noise_low <= found.noise <= found.noise_high


def test_what_other_processes_take_of_the_cores_is_no_doubt_about_a_time():
    """The kernel says how long a thread was ready and had no core."""
    busy = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(6 * len(os.sched_getaffinity(0))):
            process = subprocess.Popen(busy)
            stack.callback(process.wait)
            stack.callback(process.kill)
        side = Side("numpy_manual", "numpy_manual")
        (found,) = compare_phases(side, side, Plan(square(), budget=0.4), ["backward"])
    assert found.low <= found.ratio <= found.high


def test_ten_times_the_work_is_slower():
    op = load_op("square")
    (found,) = compare_phases(
        Side("numpy_manual", "numpy_manual"),
        Side("numpy_graph", "numpy_graph"),
        Plan(trial(op, op.sizes["1024"], REGIMES["normal"], "float32"), 0.4),
        ["backward"],
    )
    assert found.verdict == "slower"
    assert found.ratio > 1.5


def test_too_few_pairs_of_processes_are_told():
    """Two checkouts cannot share a process; here both are this one, by another path."""
    from gradwatch.harness.project.paths import ROOT

    a = Side("a", "numpy_manual", ROOT)
    b = Side("b", "numpy_manual", ROOT / "impls" / "..")
    (found,) = compare_phases(a, b, Plan(square(), 0.4, pairs=2), ["backward"])
    assert found.pairs == 2
    assert found.verdict == "not resolved"
    assert "6 pairs" in found.short


def played_pair(log_ratio, log_noise):
    """What one pair of processes told: a ratio and a noise, no samples of them."""
    told = [Estimate(math.exp(x), 0.9, 1.1, 100, 0.95) for x in (log_ratio, log_noise)]
    side = SimpleNamespace(median=1e-4)
    return Comparison(side, side, *told)


@pytest.mark.parametrize(
    ("truth", "verdict"), [(0.1, "slower"), (-0.1, "faster"), (0.0, "no difference")]
)
def test_one_noisy_pair_of_processes_does_not_hide_a_change(
    truth, verdict, monkeypatch
):
    """The ratio and the noise are both those of all pairs; a noise may be 30 % once."""
    rng = np.random.default_rng(0)
    noises = [0.3, *rng.normal(0, 0.01, 15)]
    pairs = iter([played_pair(truth + rng.normal(0, 0.03), noise) for noise in noises])
    monkeypatch.setattr(compare, "_one_pair", lambda *_: {"backward": next(pairs)})
    a, b = Side("a", "numpy_manual"), Side("b", "numpy_manual", compare.ROOT / "other")
    (found,) = compare_phases(a, b, Plan(square(), 1.0, pairs=16), ["backward"])
    assert found.verdict == verdict
    assert found.low < math.exp(truth) < found.high


def test_a_comparison_ends_when_the_answer_is_clear_and_not_before():
    quiet = [0.001 * (-1) ** i for i in range(16)]
    slower = [0.2 + noise for noise in quiet]
    assert not compare.is_clear(slower[:6], quiet[:6], 0.03)
    assert compare.is_clear(slower[:7], quiet[:7], 0.03)
    assert compare.is_clear(quiet[:7], quiet[:7], 0.03)
    for at in (0.03, -0.03):  # at the border of what counts no number is enough
        border = [at + 5 * noise for noise in quiet]
        assert not compare.is_clear(border, quiet, 0.03)


def test_a_change_below_the_least_effect_is_not_called_slower():
    """Of a forward that nobody had changed, measured beside other work."""
    ratio, noise = (Estimate(*ends, 16, 0.95) for ends in _ALIKE)
    assert verdict_on(ratio, noise, same=0.03) == "not resolved"
    assert verdict_on(ratio, noise) == "slower"
    faster = Estimate(1 / 1.018, 1 / 1.0391, 1 / 1.0065, 16, 0.95)
    assert verdict_on(faster, noise, same=0.03) == "not resolved"


_ALIKE = ((1.018, 1.0065, 1.0391), (1.0, 0.99, 1.01))


def test_processes_of_a_pair_keep_their_heap_on_huge_pages():
    """Where pages come to lie differs from process to process and moves the time."""
    with contextlib.closing(Worker(interpreter_of("numpy"), huge_pages=True)) as line:
        told = line.facts and line.process.environ()
    assert told["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"


def test_a_worker_that_dies_while_timed_is_an_error_that_says_how(tmp_path):
    page = plant(
        tmp_path, "return x**3, ", "import os; os.kill(os.getpid(), 9)\n    0, "
    )
    op = load_op(page)
    one = trial(op, op.sizes["8"], REGIMES["normal"], "float32", source=page)
    with workers() as line:
        records, untimed = time_trial(one, ["numpy_manual"], line, budget=0.1)
    assert records == []
    assert "SIGKILL" in untimed["numpy_manual"]


#: What a page does in its own calls, to whoever is timed in turn with it.
RIVALS = {
    "throws": "CALLS.append(0)\n        if len(CALLS) > 9: raise OSError('enough')",
    "loops": "CALLS.append(0)\n        while len(CALLS) > 9: pass",
}
SORTS = """
import threading

CALLS = []


def sort():
    numbers = np.random.default_rng(0).random(1 << 16)
    while True:
        np.sort(numbers)


@op.implement("manual")
def manual(x):
    CALLS or CALLS.append(threading.Thread(target=sort, daemon=True).start())"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux accounts it")
def test_what_a_worker_does_while_it_is_not_asked_is_counted(tmp_path):
    page = plant(tmp_path, '@op.implement("manual")\ndef manual(x):', SORTS.strip("\n"))
    op = load_op(page)
    one = trial(op, op.sizes["8"], REGIMES["normal"], "float32", source=page)
    with contextlib.closing(Worker(interpreter_of("numpy"))) as line:
        prepare_steps(line, [one], {"a": "numpy_manual"}, "cpu", seed=0)
        before = line.cpu_seconds()
        while line.cpu_seconds() < before + 0.05:
            time.sleep(0.01)
        line.ask("release")
        assert line.unrest() > RESTLESS


@pytest.mark.slow
@pytest.mark.parametrize("what", RIVALS)
def test_who_is_timed_beside_a_page_that_disturbs_has_no_figure(
    what, tmp_path, monkeypatch
):
    """Its rivals are the page's other dialect in that process, and one in another."""
    usable("torch")
    monkeypatch.setattr(worker, "PATIENCE", 5.0)
    page = Path(
        plant(
            tmp_path,
            '@op.implement("custom")',
            'CALLS = []\n\n\n@op.implement("custom")',
        )
    )
    page.write_text(
        page.read_text().replace(
            "        ctx.save_for_backward(x)\n",
            f"        {RIVALS[what]}\n        ctx.save_for_backward(x)\n",
        )
    )
    op = load_op(str(page))
    one = trial(op, op.sizes["8"], REGIMES["normal"], "float32", source=str(page))
    backends = ["numpy_manual", "torch_autograd", "torch_custom"]
    with workers() as line:
        records, untimed = time_trial(one, backends, line, budget=0.5)
    assert records == []
    assert sorted(untimed) == backends


LET_GO = """
    import os
    if "READY" not in os.environ:
        os.environ["READY"] = "1"
        if not os.fork():
            os.setsid()
            os.fork() and os._exit(0)
            import time
            time.sleep(60)
            os._exit(0)
        os.wait()
    return x**3, """


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps orphans")
def test_a_process_that_a_page_has_let_go_is_found(tmp_path):
    """It could do the work of calls, which the kernel accounts to it alone."""
    page = plant(tmp_path, "return x**3, ", LET_GO.strip())
    op = load_op(page)
    one = trial(op, op.sizes["8"], REGIMES["normal"], "float32", source=page)
    with workers() as line:
        records, untimed = time_trial(one, ["numpy_manual"], line, budget=0.1)
        for orphan in psutil.Process(line("numpy").process.pid).children():
            orphan.kill()
    assert records == []
    assert untimed == {"numpy_manual": "1 processes that it started still run"}


def test_a_remote_sample_is_taken_by_the_workers_own_clock():
    with contextlib.closing(Worker(interpreter_of("numpy"))) as line:
        payload = {"options": {"steps": {"one": "numpy_manual"}}}
        from gradwatch.harness.workers.pool import Task

        task = Task(square(), "numpy_manual")
        line.ask("prepare", **{**task.payload(), **payload})
        reading = remote_sample(line, "one", "backward", 3)
        assert 0 < reading.seconds < 0.1
        with pytest.raises(Died, match="two"):
            remote_sample(line, "two", "backward", 1)


def test_comparing_a_backend_with_a_commit_is_refused():
    done = gradwatch("compare", "numpy_manual", "HEAD", "--op", "square")
    assert done.returncode == 2
    assert "no backend is called 'HEAD'" in done.stderr


def test_commits_that_run_the_same_files_are_answered_at_once():
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = gradwatch("compare", "HEAD", commit, "--op", "square")
    assert done.returncode == 0, done.stderr
    assert "square: the same files run at HEAD and at " in done.stderr


def test_two_checkouts_of_one_commit_are_compared_and_cleaned_up(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    done = gradwatch(
        *("compare", "HEAD", "HEAD", "--op", "square", "--size", "small", "--pairs", 2),
        *("--backend", "numpy_manual", "--phase", "forward", "--budget", "0.4"),
        *("--json", "-"),
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(done.stdout)["records"]
    assert (record["a"], record["b"], record["pairs"]) == ("HEAD", "HEAD", 2)
    trees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True)
    assert str(tmp_path) not in trees.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "call", [("time",), ("compare", "numpy_manual", "numpy_graph")], ids=" ".join
)
def test_a_device_that_is_missing_for_all_that_is_asked_for_is_exit_3(call, tmp_path):
    file = tmp_path / "nothing.json"
    done = gradwatch(
        *(*call, "--op", "square", "--size", "small", "--device", "cuda"),
        *(("--backend", "numpy_manual") if call == ("time",) else ()),
        *("--json", file),
    )
    assert done.returncode == 3
    if call == ("time",) and not has_cuda():  # said at once, before anything starts
        assert done.stderr.startswith("gradwatch: no CUDA device is here")
        return
    assert "nothing could be" in done.stderr
    assert json.loads(file.read_text())["records"] == []


def test_what_is_missing_for_one_reason_is_one_line(tmp_path):
    done = gradwatch(
        *("compare", *NUMPY, "--op", "square", "--op", "exp2", "--size", "small"),
        *("--device", "cuda", "--json", tmp_path / "a.json"),
    )
    document = json.loads((tmp_path / "a.json").read_text())
    (line,) = document["summary"]["failed"]
    assert line.startswith("square[normal-")
    assert " and 1 more: " in line  # ops
    assert done.stderr.count("not compared") == 1


def test_a_wrong_gradient_is_not_compared(tmp_path):
    page = plant(tmp_path, "(3 * x**2 * dy,)", "(3 * x * dy,)")
    done = gradwatch(
        *("compare", "numpy_graph", "numpy_manual", "--ops", page),
        *("--phase", "forward", "--budget", "0.2", "--json", "-"),
    )
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["records"] == []
    assert "numpy_manual is wrong: disagree: dx[" in document["summary"]["failed"][0]


def test_a_wrong_gradient_that_there_is_no_time_to_compare_is_told(tmp_path):
    page = plant(tmp_path, "(3 * x**2 * dy,)", "(3 * x * dy,)")
    done = gradwatch(
        *("compare", "numpy_graph", "numpy_manual", "--op", "square", "--ops", page),
        *("--size", "small", "--budget", "0.1", "--limit", "0.001"),
    )
    assert done.returncode == 1
    assert "numpy_manual is wrong: disagree: dx[" in done.stderr
    assert "with a wrong gradient" in done.stdout


#: Backwards whose gradient is right and which destroy what they were given.
DESTRUCTIVE = {
    "dy: overwritten": "(np.multiply(dy, 3 * x**2, out=dy),)",
    "a saved tensor was overwritten": "(3 * np.multiply(s, s, out=s) * dy,)",
}


@pytest.mark.parametrize("destroyed", DESTRUCTIVE)
@pytest.mark.parametrize("call", ["time", "compare"])
def test_a_backward_that_destroys_what_it_was_given_is_not_timed(
    call, destroyed, tmp_path
):
    page = plant(
        tmp_path,
        "return x**3, lambda dy: (3 * x**2 * dy,)",
        f"s = x.copy()\n    return x**3, lambda dy: {DESTRUCTIVE[destroyed]}",
    )
    sides = NUMPY if call == "compare" else ("--backend", NUMPY[1])
    done = gradwatch(call, *sides, "--ops", page, "--budget", "0.2", "--json", "-")
    document = json.loads(done.stdout)
    assert document["records"] == []
    assert destroyed in str(document["summary"])


def test_a_size_that_no_op_has_is_not_compared():
    done = gradwatch("compare", *NUMPY, "--op", "square", "--size", "1023")
    assert done.returncode == 2
    assert "1024" in done.stderr


def _is_worker(process):
    """Whether it serves an endpoint: the command is past its imports then."""
    try:
        return "endpoint import work" in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    "call",
    [("time", "--budget", "60"), ("compare", "HEAD", "HEAD", "--budget", "60")],
    ids=lambda call: call[0],
)
def test_an_interrupt_in_the_middle_leaves_no_process_and_no_checkout(call, tmp_path):
    filters = ("--op", "square", "--size", "small", "--backend", "numpy_manual")
    command = (sys.executable, "-m", "gradwatch", *call, *filters)
    running = subprocess.Popen(
        [*command, "--json", str(tmp_path / "half.json")],
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )
    started: list[psutil.Process] = []
    while running.poll() is None and not any(map(_is_worker, started)):
        time.sleep(0.05)
        started = psutil.Process(running.pid).children(recursive=True)
    time.sleep(1)  # into the judging or the timing, which last a minute
    started += psutil.Process(running.pid).children(recursive=True)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal's Ctrl-C
    _, told = running.communicate(timeout=120)
    assert running.returncode == 130
    assert told.strip() == b"gradwatch: interrupted"
    _, alive = psutil.wait_procs(started, timeout=30)  # workers end with their parent
    assert alive == []
    assert list(tmp_path.iterdir()) == []
    trees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True)
    assert str(tmp_path) not in trees.stdout
