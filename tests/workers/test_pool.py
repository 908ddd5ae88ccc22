"""A case that kills, hangs or fouls its worker costs one verdict and nothing else."""

import contextlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from gradwatch.harness.endpoint import DeviceLost
from gradwatch.harness.workers import pool, process
from gradwatch.harness.workers.arrays import encoded
from gradwatch.harness.workers.client import Line
from gradwatch.harness.workers.lane import MOST, Lane
from gradwatch.harness.workers.messages import Task
from gradwatch.harness.workers.pool import STARTS, Fleet, sweep
from gradwatch.harness.workers.process import SLICE, slice_of
from gradwatch.harness.workers.pythons.interpreters import (
    broken,
    interpreter_of,
    variable,
)
from gradwatch.impls.catalogue import UnknownName, load_op
from gradwatch.impls.contract import Op, Problem
from tests.square import DX, page, task
from tests.workers.test_slices import TAKES

ROOT = Path(__file__).parents[2]
PATIENCE = 2.0  # seconds: a hundred times a case of these, for a busy machine


@pytest.fixture(scope="module", params=[(), ("numpy",)], ids=["", "copied"])
def fleet(request):
    """Of workers that end with a crash, and of those of which a copy ends."""
    with Fleet(copied=request.param) as fleet:
        yield fleet


def test_what_compiles_is_started_first_whose_few_tasks_take_longest():
    fleet, one = Fleet(jobs=2), task(Path("page.py"))
    tasks = {name: replace(one, backend=f"{name}_custom") for name in ("torch", "jax")}
    fleet._waiting = {
        "torch": deque([tasks["torch"]] * 50),
        "jax": deque([tasks["jax"]]),
    }
    assert fleet._understaffed() == "jax"
    del fleet._waiting["jax"]
    assert fleet._understaffed() == "torch"


def test_of_few_tasks_those_come_first_whose_framework_takes_long_to_import():
    """Else the last of them is imported while nothing else is left to do."""
    fleet, one = Fleet(jobs=2), task(Path("page.py"))
    few = {"numpy": 342, "torch": 342, "autograd": 171, "oneflow": 513, "jax": 100}
    fleet._waiting = {
        name: deque([replace(one, backend=f"{name}_formula")] * tasks)
        for name, tasks in few.items()
    }
    order = []
    while fleet._waiting:
        order.append(fleet._understaffed())
        del fleet._waiting[order[-1]]
    assert order == ["torch", "oneflow", "jax", "numpy", "autograd"]


@pytest.mark.parametrize(
    ("backends", "options", "first"),
    [
        (["numpy_graph", "jax_jit", "torch_custom"], {}, ["torch", "numpy"]),
        (
            ["numpy_graph", "jax_jit", "torch_custom"],
            {"compiling_first": True},
            ["jax", "torch"],
        ),
        (["oneflow_custom", "autograd_formula", "none_such"], {}, ["autograd"]),
    ],
    ids=["the slowest to import", "or what compiles", "of those that are there"],
)
def test_workers_start_before_their_tasks_are_known(
    monkeypatch, backends, options, first
):
    started = []

    def interpreters_of(names):
        missing = {"oneflow": "not here", "none": "not here"}
        return {n: SimpleNamespace(why_missing=missing.get(n, "")) for n in names}

    monkeypatch.setattr(pool.interpreters, "interpreters_of", interpreters_of)
    monkeypatch.setattr(Fleet, "_start", lambda fleet, name: started.append(name) or ())
    with Fleet(jobs=2) as fleet:
        fleet.warm(backends, **options)
        assert started == first
        fleet._lanes = [SimpleNamespace(worker=SimpleNamespace(kill=int, close=int))]
        fleet.warm(backends, **options)  # those of an earlier run are kept
        assert started == first


def test_pythons_that_another_process_asked_are_not_asked_again(monkeypatch):
    asked, found = [], interpreter_of("numpy")
    monkeypatch.setattr(
        pool.interpreters, "interpreters_of", lambda names: asked.extend(names) or {}
    )
    with Fleet() as fleet:
        fleet.know([found])
        fleet._find(["numpy", "torch"])
        assert asked == ["torch"]
        fleet._interpreters["numpy"] = broken(found, "it ended")
        fleet.know([found])  # what this process has learnt of it counts
        assert fleet._interpreters["numpy"].why_missing


def test_a_worker_that_was_started_early_and_cannot_import_is_no_error(tmp_path):
    """Nothing waits for it."""
    with Fleet(jobs=2) as fleet:
        broken = replace(interpreter_of("numpy"), framework="torch")
        fleet._interpreters["torch"] = broken
        fleet._failed_starts["torch"] = STARTS - 1
        list(fleet._failed_to_start("torch", "it ended"))
        assert {one.kind for one in fleet.run([task(page(tmp_path))])} == {"result"}


@pytest.mark.parametrize(
    ("framework", "ends"), [("jax", ["0", "9"]), ("torch", ["0", "1"])]
)
def test_a_second_worker_that_compiles_starts_at_the_other_end(
    tmp_path, monkeypatch, framework, ends
):
    """Tasks of an op follow one another; both would compile the same for them."""
    sent = []

    class Written:
        """A worker that is sent tasks."""

        buffer = 1 << 20

        def __init__(self, *_, **__):
            self.kill = self.close = int

        def send(self, request, payload):
            sent.append(payload["attributes"]["number"])

    monkeypatch.setattr(pool, "Worker", Written)
    one = replace(task(page(tmp_path)), backend=f"{framework}_custom")
    with Fleet(jobs=2) as fleet:
        fleet._interpreters[framework] = None
        problems = [
            replace(one.problem, attributes={"number": f"{i}"}) for i in range(10)
        ]
        fleet._waiting = {framework: deque(replace(one, problem=p) for p in problems)}
        for _ in range(2):
            assert not [*fleet._start(framework)]
        for lane in fleet._lanes:
            lane.facts = {"backends": {}}
            assert not [*fleet._feed(lane, 60.0)]
    assert sent == ends


@pytest.mark.parametrize(
    ("ops", "each", "others", "first"),
    [(1, 100, 1536, "torch"), (20, 90, 27800, "torch"), (60, 1, 1440, "jax")],
    ids=["one op", "twenty ops", "a first look at sixty"],
)
def test_what_compiles_a_sample_waits_where_others_take_longer(
    ops, each, others, first
):
    """Trials are judged meanwhile, each when its last backend has answered."""
    fleet, one = Fleet(jobs=2), task(Path("page.py"))
    jax = [replace(one, op=f"{i}", backend="jax_jit") for i in range(ops)]
    fleet._waiting = {
        "jax": deque(jax * each),
        "torch": deque([replace(one, backend="torch_custom")] * others),
    }
    assert fleet._understaffed() == first


#: A GPU whose context is lost: each further call of its framework says so.
LOST = """
import types
def wait():
    raise RuntimeError('CUDA error: an illegal memory access was encountered')
lost = types.SimpleNamespace(is_initialized=lambda: True, synchronize=wait)
sys.modules['torch'] = types.SimpleNamespace(cuda=lost)
"""


def folder(parent, name):
    (parent / name).mkdir()
    return parent / name


def among_others(tmp_path, planted, *, before=3, after=40):
    """The planted page in a queue of clean ones, more than travel at a time."""
    clean = page(folder(tmp_path, "clean"))
    bad = page(folder(tmp_path, "bad"), **planted)
    others = [task(clean, id=f"clean {i}") for i in range(before + after)]
    return [*others[:before], task(bad, id="bad"), *others[before:]]


@pytest.mark.parametrize(
    ("statement", "kind", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash", "killed by SIGSEGV in"),
        ("ctypes.string_at(0)", "crash", "killed by SIGSEGV in"),
        ("os.abort()", "crash", "killed by SIGABRT in"),
        ("os.kill(os.getpid(), signal.SIGFPE)", "crash", "killed by SIGFPE in"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crash", "killed by SIGKILL"),
        ("os.kill(os.getpid(), 40)", "crash", "killed by signal 40"),
        ("os._exit(3)", "crash", "exited with status 3"),
        ("while True: pass", "timeout", "no answer in 2 s in"),
        ("ctypes.PyDLL(None).sleep(1000)", "timeout", "no answer in 2 s in"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "timeout", "no answer in 2 s"),
        (
            LOST,
            "crash",
            f"{DeviceLost.__module__}.DeviceLost: RuntimeError: CUDA error",
        ),
        ("sys.exit(3)", "error", "SystemExit: 3"),
        ("raise ValueError('no')", "error", "ValueError: no"),
        ("raise MemoryError", "error", "MemoryError"),
        ("raise Unsupported('never')", "unsupported", "never"),
        (
            "import gradwatch.harness.workers.evaluate as e; raise e.Missing('gone')",
            "error",
            "gone",
        ),
    ],
)
def test_a_planted_end_costs_one_verdict(tmp_path, fleet, statement, kind, message):
    tasks = among_others(tmp_path, {"backward": statement})
    outcomes = {o.task.id: o for o in fleet.run(tasks, timeout=PATIENCE)}
    bad = outcomes.pop("bad")
    assert (bad.kind, bad.result) == (kind, None)
    assert bad.message.startswith(message), bad.trace
    assert len(outcomes) == len(tasks) - 1
    assert {o.kind for o in outcomes.values()} == {"result"}
    assert all(
        o.result.gradients["dx"].tolist() == DX.tolist() for o in outcomes.values()
    )


def test_a_page_that_empties_sys_modules_costs_one_verdict(tmp_path):
    """Nobody could import anything after it: the first page, in a fresh worker."""
    planted = {"backward": "sys.modules.clear() or int('x')"}
    outcomes = [*sweep(among_others(tmp_path, planted, before=0, after=3))]
    assert [o.kind for o in outcomes] == ["error", "result", "result", "result"]
    assert outcomes[0].message.startswith("ValueError: invalid literal")


@pytest.mark.slow
def test_who_waits_for_a_worker_is_called_every_second(tmp_path):
    seen = list[float]()
    tasks = [task(page(tmp_path, backward="import time; time.sleep(3.5)"))]
    with Fleet(waiting=lambda: seen.append(time.monotonic())) as fleet:
        (outcome,) = fleet.run(tasks)
    assert outcome.kind == "result"
    assert len(seen) >= 3

    seen.clear()
    line = Line(interpreter_of("numpy"), waiting=lambda: seen.append(0.0))
    with contextlib.closing(line):
        (slow,) = tasks
        assert line.ask(slow.request, **slow.payload())["kind"] == "result"
    assert len(seen) >= 3


def test_a_crash_says_where(tmp_path, fleet):
    tasks = [task(page(tmp_path, backward="\n\nos.abort()"))]
    (outcome,) = fleet.run(tasks, timeout=PATIENCE)
    line = (tmp_path / "square.py").read_text().splitlines().index("        os.abort()")
    assert outcome.message == f"killed by SIGABRT in backward (square.py:{line + 1})"
    assert "Fatal Python error: Aborted" in outcome.trace


NOISE = """
print("noise", flush=True)
print("noise", file=sys.stderr)
os.write(1, b"noise" * 10000)
os.write(2, b"noise" * 10000)
sys.stdin.read()
"""


def test_noise_neither_fouls_the_wire_nor_reaches_the_terminal(tmp_path, fleet, capfd):
    outcomes = list(fleet.run(among_others(tmp_path, {"backward": NOISE})))
    assert {o.kind for o in outcomes} == {"result"}
    assert capfd.readouterr() == ("", "")


def test_a_worker_without_standard_streams_still_answers(tmp_path, fleet):
    planted = "for fd in (0, 1, 2): os.close(fd)"
    outcomes = list(fleet.run(among_others(tmp_path, {"forward": planted})))
    assert [o.kind for o in outcomes].count("result") >= len(outcomes) - 1


@pytest.mark.parametrize(("crashes", "others"), [(3, 5), (1, 0), (4, 0)])
def test_each_crash_costs_one_verdict(tmp_path, crashes, others):
    bad = page(folder(tmp_path, "bad"), forward="os._exit(1)")
    clean = page(folder(tmp_path, "clean"))
    tasks = [task(bad) for _ in range(crashes)] + [task(clean) for _ in range(others)]
    kinds = [outcome.kind for outcome in sweep(tasks, jobs=2)]
    assert (kinds.count("crash"), kinds.count("result")) == (crashes, others)


def leave_pid(at):
    """A statement that leaves the worker's pid as a name in the folder `at`."""
    return f"os.makedirs({str(at)!r} + '/' + str(os.getpid()), exist_ok=True)"


def pids(at):
    return {int(path.name) for path in at.iterdir()}


def test_a_worker_killed_from_outside_costs_the_case_it_was_at(tmp_path):
    at = tmp_path / "pid"
    slow = page(tmp_path, forward=f"{leave_pid(at)}; time.sleep(0.2)")
    kinds = []
    for outcome in sweep(task(slow) for _ in range(5)):
        if not kinds:  # a task takes 0.4 s: the next one is under way when it comes
            kill = threading.Timer(0.2, os.kill, [*pids(at), signal.SIGKILL])
            kill.start()
        kinds.append(outcome.kind)
    assert (kinds.count("crash"), kinds.count("result")) == (1, 4)


def test_workers_live_from_one_run_to_the_next(tmp_path):
    at = tmp_path / "pid"
    tasks = [task(page(tmp_path, forward=leave_pid(at)))]
    with Fleet() as fleet:
        for _ in range(3):
            list(fleet.run(tasks))
    (pid,) = pids(at)
    assert not psutil.pid_exists(pid)


def test_a_run_given_up_early_leaves_nothing_for_the_next(tmp_path, fleet):
    clean = [task(page(tmp_path), id=str(i)) for i in range(100)]
    first = fleet.run(clean)
    next(first)
    first.close()
    again = [task(clean[0].op, id="again")]
    assert [outcome.task.id for outcome in fleet.run(again)] == ["again"]


def test_a_fleet_does_one_run_at_a_time(tmp_path, fleet):
    clean = [task(page(tmp_path))] * 2
    first = fleet.run(clean)
    next(first)
    with pytest.raises(RuntimeError, match="busy with another run"):
        next(fleet.run(clean))
    assert next(first).kind == "result"


def test_a_grandchild_that_holds_the_pipe_does_not_keep_the_sweep(tmp_path, fleet):
    planted = """
    if os.fork() == 0:
        os.setsid()
        time.sleep(6)
        os._exit(0)
    os._exit(1)
    """
    tasks = among_others(tmp_path, {"forward": textwrap.dedent(planted)}, after=3)
    kinds = [outcome.kind for outcome in fleet.run(tasks, timeout=3.0)]
    assert kinds.count("result") == len(tasks) - 1


def of(array, path):
    """The task of a page with a larger input and cotangent."""
    asked = task(path)
    larger = replace(asked.problem, inputs={"x": array}, cotangents=[array])
    return replace(asked, problem=larger)


def test_large_arrays_travel_both_ways(tmp_path, fleet):
    big = np.random.default_rng(0).standard_normal(1 << 20)  # 8 MiB
    (outcome,) = fleet.run([of(big, page(tmp_path))])
    np.testing.assert_array_equal(outcome.result.gradients["dx"], 2 * big * big)


def test_a_worker_that_reads_nothing_does_not_block_the_sweep(tmp_path):
    """Stopped while idle: the pipe fills up, and nobody empties it."""
    at = tmp_path / "pid"
    path = page(tmp_path, forward=leave_pid(at))
    big = np.ones(1 << 20)
    with Fleet() as fleet:
        list(fleet.run([task(path)]))
        os.kill(*pids(at), signal.SIGSTOP)
        (first,) = fleet.run([of(big, path)], timeout=0.5)
        (second,) = fleet.run([of(big, path)])
    assert (first.kind, second.kind) == ("timeout", "result")


def test_a_task_is_not_late_that_was_sent_after_an_old_answer(tmp_path):
    """What a slow consumer takes up long after it came; then it sends more."""
    worker = SimpleNamespace(send=lambda request, payload: None, buffer=1 << 20)
    lane, one = Lane("numpy", None, worker, 0.0, facts={"": ""}), task(page(tmp_path))
    for _ in range(3):
        lane.send(one, {}, 3.0)
    now = time.monotonic()
    lane.answered(0.01, now - 100)
    assert now + 2 < lane.deadline(3.0) <= now + 3
    lane.answered(0.01, now + 1)  # at work since then, as the next was already there
    assert lane.deadline(3.0) == now + 4
    lane.answered(0.01, now + 2)
    assert lane.deadline(3.0) == math.inf


@pytest.mark.parametrize("size", [1, 60, 250, 600, 2500, 8000, 1 << 20])
def test_what_may_be_under_way_fits_into_the_pipe_to_a_worker_that_is_busy(
    tmp_path, size
):
    """Else the pool would wait for a worker that hangs, and end neither."""
    ours, theirs, held = process._pipe()
    one = task(page(tmp_path))
    problem = replace(one.problem, inputs={"x": np.ones(size)})
    one = replace(one, problem=replace(problem, cotangents=[np.ones(size)]))
    os.set_blocking(ours.fileno(), False)  # what would wait raises
    sent = []

    def send(request, payload):
        if sent or one.nbytes < held:
            ours.send_bytes(encoded({"request": request, **payload}))
        sent.append(payload)

    worker = SimpleNamespace(send=send, buffer=held, kill=int)
    lane = Lane("numpy", None, worker, 0.0, facts={"": ""}, pace=1e-6)
    with ours, theirs:
        while lane.has_room_for(one):
            lane.send(one, one.payload(), 60.0)
    assert 0 < len(sent) <= MOST


def test_a_slow_consumer_does_not_make_tasks_late(tmp_path, fleet):
    tasks = among_others(tmp_path, {}, after=10)
    kinds = set()
    for i, outcome in enumerate(fleet.run(tasks, timeout=3.0)):
        if i == 1:
            time.sleep(4.0)
        kinds.add(outcome.kind)
    assert kinds == {"result"}


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.broadcast_to(0.0, (1 << 30,))],
    ids=["of objects", "of 8 GiB"],
)
def test_an_array_that_cannot_travel_costs_one_verdict(tmp_path, fleet, array):
    clean = task(page(tmp_path))
    odd = task(clean.op)
    odd.problem.inputs["x"] = array
    kinds = [outcome.kind for outcome in fleet.run([clean, odd, clean])]
    assert sorted(kinds) == ["error", "result", "result"]


def test_an_unknown_backend_names_the_nearest(tmp_path, fleet):
    with pytest.raises(UnknownName, match="did you mean 'numpy_manual'"):
        list(fleet.run([task(page(tmp_path), "numpy_manul")]))


@pytest.mark.parametrize("jobs", [0, -1])
def test_there_is_at_least_one_job(jobs):
    with pytest.raises(ValueError, match="at least one job"):
        Fleet(jobs=jobs)


def test_no_tasks_have_no_outcomes():
    assert list(sweep([])) == []


def test_a_second_worker_helps_a_first_that_is_slow(tmp_path):
    """Each of two tasks waits for a sign of the other: one worker cannot do both."""
    wait = "while not os.path.exists({!r}): time.sleep(0.01)"
    tasks = []
    for mine, other in ("ab", "ba"):
        sign, awaited = str(tmp_path / mine), str(tmp_path / other)
        planted = f"open({sign!r}, 'w').close()\n{wait.format(awaited)}"
        tasks.append(task(page(folder(tmp_path, f"page {mine}"), forward=planted)))
    outcomes = list(sweep(tasks, jobs=2, timeout=20.0))
    assert {outcome.kind for outcome in outcomes} == {"result"}


def test_a_second_worker_is_not_started_for_a_little_work(tmp_path):
    at = tmp_path / "pid"
    tasks = [task(page(tmp_path, forward=leave_pid(at)))] * 50
    assert len(list(sweep(tasks, jobs=2))) == 50
    assert len(pids(at)) == 1


def test_a_first_task_that_is_slow_starts_no_second_worker(tmp_path):
    """Frameworks that compile take long for the first, and not for the others."""
    at = tmp_path / "pid"
    slow = page(folder(tmp_path, "slow"), forward=f"{leave_pid(at)}; time.sleep(0.2)")
    quick = page(folder(tmp_path, "quick"), forward=leave_pid(at))
    tasks = [task(slow), *[task(quick)] * 60]
    assert len(list(sweep(tasks, jobs=2))) == len(tasks)
    assert len(pids(at)) == 1


def some_of(*backends):
    problem = Problem(load_op("square"), {"x": np.ones(3)}, [np.ones(3)])
    return [Task("square", "square", b, problem) for b in backends for _ in range(30)]


def test_a_worker_that_polls_stays_on_one_core():
    """All threads of OneFlow's, and none of the others."""
    tasks = some_of("numpy_manual", "oneflow_custom")
    with Fleet(jobs=2) as fleet:
        assert {outcome.kind for outcome in fleet.run(tasks)} == {"result"}
        allowed = {
            lane.framework: [
                os.sched_getaffinity(thread.id)
                for process in lane.worker._processes()
                for thread in process.threads()
            ]
            for lane in fleet._lanes
        }
        (polls,) = (x for x in fleet._lanes if x.framework == "oneflow")
        threads = [t for one in polls.worker._processes() for t in one.threads()]
        slices = {slice_of(one.id) for one in threads}
        assert slices == ({SLICE} if TAKES else {slice_of(os.getpid())})
    assert len(allowed["oneflow"]) > 1
    assert {len(cores) for cores in allowed["oneflow"]} == {1}
    assert allowed["numpy"] == [os.sched_getaffinity(0)] * len(allowed["numpy"])


def test_workers_that_poll_are_spread_over_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7})
    pinned: list[int] = []
    worker = SimpleNamespace(stay_on=pinned.append, close=int, kill=int)
    with Fleet() as fleet:
        fleet._lanes += (Lane("oneflow", None, worker, 0.0) for _ in range(6))
        for lane in fleet._lanes:
            fleet._pin(lane)
    assert sorted(pinned) == [2, 2, 5, 5, 7, 7]
    assert {*pinned[:3]} == {2, 5, 7}


def test_after_two_crashes_the_next_worker_waits_for_its_turn(tmp_path):
    """The third crash costs no start: a reserve has started meanwhile."""
    planted, reserves = {"backward": "os.abort()"}, set()
    crashes = [task(page(folder(tmp_path, "bad"), **planted))] * 3
    slow = task(page(folder(tmp_path, "slow"), forward="time.sleep(0.1)"))
    with Fleet() as fleet:
        for _ in fleet.run([*crashes[:2], *[slow] * 20, crashes[2], slow]):
            reserves |= {x.worker for x in fleet._lanes if x.reserve}
        assert {outcome.kind for outcome in fleet.run([slow])} == {"result"}
        assert {lane.worker for lane in fleet._lanes} & reserves


def in_turn(tmp_path, marks):
    """Tasks that leave their process's pid: "." works; "F" aborts and "K" is killed."""
    at = tmp_path / "pid"
    leave = leave_pid(at)
    kinds = {
        "F": {"forward": leave, "backward": "os.abort()"},
        "K": {"forward": leave, "backward": "os.kill(os.getpid(), signal.SIGKILL)"},
        ".": {"forward": leave},
    }
    pages = {
        n: page(folder(tmp_path, f"page {n}"), **does) for n, does in kinds.items()
    }
    return at, [task(pages[mark]) for mark in marks]


@pytest.mark.parametrize(
    ("marks", "copies"), [("..F", 1), ("F...", 2), ("F.FK.", 4), ("KKFF", 4), ("..", 1)]
)
def test_of_a_worker_that_is_copied_a_crash_ends_the_copy(tmp_path, marks, copies):
    """Each leaves the next task to the next copy, of the same worker."""
    at, tasks = in_turn(tmp_path, marks)
    with Fleet(copied=("numpy",)) as fleet:
        outcomes = list(fleet.run(tasks))
        (only,) = fleet._lanes
        assert only.worker._process.pid not in pids(at)
        assert not fleet._crashes.total()
    ends = {"F": "killed by SIGABRT in backward", "K": "killed by SIGKILL", ".": ""}
    found = [outcome.message.partition(" (")[0] for outcome in outcomes]
    assert found == [ends[mark] for mark in marks]  # SIGKILL says not where: it is new
    assert len(pids(at)) == copies


def test_where_there_is_a_gpu_no_worker_is_copied(tmp_path, monkeypatch):
    """OneFlow refuses CUDA in a copied process."""
    at = tmp_path / "pid"
    monkeypatch.setattr(pool.interpreters, "has_cuda", lambda: True)
    with Fleet(copied=("numpy",)) as fleet:
        list(fleet.run([task(page(tmp_path, forward=leave_pid(at)))]))
        (lane,) = fleet._lanes
        assert pids(at) == {lane.worker._process.pid}


def test_after_the_last_task_no_copy_is_made(tmp_path):
    """It would import a framework for nothing."""
    at, tasks = in_turn(tmp_path, ".F")
    with Fleet(copied=("numpy",)) as fleet:
        list(fleet.run(tasks))
        (lane,) = fleet._lanes
        time.sleep(0.2)
        assert lane.worker._processes() == [lane.worker._process]
        assert [outcome.kind for outcome in fleet.run(tasks[:1])] == ["result"]
        assert lane.worker.alive
    assert len(pids(at)) == 2


def test_a_crash_has_its_own_trace_though_the_next_copy_has_crashed_as_well(tmp_path):
    """Before anybody took up the first."""
    _, tasks = in_turn(tmp_path, "F.K")
    with Fleet(copied=("numpy",)) as fleet:
        list(fleet.run(tasks[1:2] * 10))  # now it gets several at once
        outcomes = []
        for outcome in fleet.run([*tasks[1:2] * 3, *tasks]):
            outcomes.append(outcome)
            time.sleep(0.5)
    aborted, killed = (one for one in outcomes if one.kind == "crash")
    assert aborted.trace.count("Fatal Python error: Aborted") == 1
    assert (killed.trace, killed.message) == ("", "killed by SIGKILL")


def test_a_copy_that_ends_without_a_task_takes_its_worker_with_it():
    """Nobody knows why."""
    said = {"code": 1, "log": b""}
    with Fleet(copied=("numpy",)) as fleet:
        list(fleet.run(some_of("numpy_manual")))
        (lane,) = fleet._lanes
        assert not [*fleet._replaced(lane, said, time.monotonic(), PATIENCE)]
        assert not fleet._lanes
        assert not lane.worker.alive


@pytest.mark.parametrize("copied", [(), ("numpy",)], ids=["", "copied"])
def test_a_worker_killed_while_idle_costs_nothing(tmp_path, copied):
    at = tmp_path / "pid"
    tasks = [task(page(tmp_path, forward=leave_pid(at)))]
    with Fleet(copied=copied) as fleet:
        list(fleet.run(tasks))
        os.kill(*pids(at), signal.SIGKILL)
        while fleet._events.empty():
            time.sleep(0.01)
        assert [outcome.kind for outcome in fleet.run(tasks * 3)] == ["result"] * 3


def test_oneflows_libraries_are_loaded_once_and_its_threads_start_in_a_copy():
    found = interpreter_of("oneflow")
    if found.why_missing:
        pytest.skip(f"{found.why_missing}; {found.mend}")
    with Fleet() as fleet:
        list(fleet.run([task("square", "oneflow_formula")]))
        (lane,) = fleet._lanes
        first, copy = lane.worker._processes()
        assert any("_oneflow_internal" in one.path for one in first.memory_maps())
        assert (first.num_threads(), copy.num_threads() > 1) == (1, True)


def test_one_worker_of_each_framework_stays_for_the_next_run():
    """Idle it costs nothing, and importing a framework takes seconds."""
    tasks = some_of("torch_custom", "numpy_manual")
    with Fleet(jobs=1) as fleet:
        busy = [sum(bool(x.flying) for x in fleet._lanes) for _ in fleet.run(tasks)]
        first = {lane.worker for lane in fleet._lanes}
        assert len(list(fleet.run(tasks))) == len(tasks)
        assert {lane.worker for lane in fleet._lanes} == first
    assert len(first) == 2
    assert max(busy) == 1


def with_torch_that(does, tmp_path, monkeypatch):
    """An interpreter whose torch does this when it is imported."""
    (folder(tmp_path, "packages") / "torch.py").write_text(does)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv(variable("torch"), sys.executable)


@pytest.mark.parametrize(
    ("does", "why"),
    [
        ("import os; os.abort()", "killed by SIGABRT while starting"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import libtorch", "ModuleNotFoundError: No module named 'libtorch'"),
        ("open('libtorch_cpu.so')", "libtorch_cpu.so"),
    ],
)
@pytest.mark.parametrize("copied", [(), ("torch",)], ids=["", "copied"])
def test_a_framework_that_cannot_be_imported_is_missing(
    tmp_path, monkeypatch, does, why, copied
):
    """For all of its tasks, while those of others go on."""
    with_torch_that(does, tmp_path, monkeypatch)
    path = page(tmp_path)
    tasks = [task(path, backend) for backend in ("torch_custom", "numpy_manual")] * 3
    with Fleet(jobs=2, copied=copied) as fleet:
        outcomes = list(fleet.run(tasks))
    missing = [o for o in outcomes if o.kind == "missing"]
    assert [o.kind for o in outcomes].count("result") == 3
    assert {o.task.backend for o in missing} == {"torch_custom"}
    assert all(why in o.message and "to fix it" in o.message for o in missing)


def test_a_missing_interpreter_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv(variable("oneflow"), "/nowhere/python")
    (outcome,) = sweep([task(page(tmp_path), "oneflow_custom")])
    assert outcome.kind == "missing"
    assert "/nowhere/python, which is not there; to fix it" in outcome.message


def test_oneflow_that_aborts_on_a_legal_input_costs_one_verdict():
    """The dot product of two empty vectors is 0, with empty gradients."""
    found = interpreter_of("oneflow")
    if found.why_missing:
        pytest.skip(f"{found.why_missing}; {found.mend}")
    backends = ["numpy_manual", "oneflow_autograd"]
    empty, two = np.zeros(0), np.ones(2)
    tasks = [
        Task(f"{len(a)}", "dot", backend, Problem(DOT, {"a": a, "b": a}, [np.ones(())]))
        for backend in backends
        for a in (two, empty, two)
    ]
    kinds = {backend: [] for backend in backends}
    for outcome in sweep(tasks):
        kinds[outcome.task.backend].append(outcome.kind)
        if outcome.kind == "crash":
            assert outcome.message.startswith("killed by SIGABRT")
    assert kinds["numpy_manual"] == ["result"] * 3
    assert sorted(kinds["oneflow_autograd"]) == ["crash", "result", "result"]


DOT = Op("dot", inputs="a b")


def test_every_framework_here_answers_in_one_sweep():
    """Two jobs for three frameworks: a worker makes room for the next."""
    frameworks = ["numpy", "torch", "oneflow"]
    missing = [f for f in frameworks if interpreter_of(f).why_missing]
    tasks = [task("square", f"{f}_formula", id=f) for f in frameworks if f != "numpy"]
    tasks += [task("square", "numpy_graph", id="numpy")]
    outcomes = {o.task.id: o for o in sweep(tasks, jobs=2)}
    for framework in frameworks:
        outcome = outcomes[framework]
        if framework not in missing:
            assert outcome.kind == "result", outcome.message
            assert outcome.result.gradients["dx"].tolist() == DX.tolist()
            assert outcome.version
        else:
            assert outcome.kind == "missing"
    if missing:
        pytest.skip(f"not here: {missing}")


# Ends of the parent -----------------------------------------------------------------

SCRIPT = """
import sys, time
sys.path.insert(0, {root!r})
from gradwatch.harness.workers.pool import Fleet
from tests.square import task

def run():
    with Fleet(jobs=2, copied={copied!r}) as fleet:
        for outcome in fleet.run([task({clean!r}), *[task({hung!r})] * 3]):
            print("going", flush=True)
            {then}

try:
    run()
except KeyboardInterrupt:
    sys.exit(130)
"""

HUNG = ["while True: pass", "ctypes.PyDLL(None).sleep(1000)"]


@contextlib.contextmanager
def sweeping(tmp_path, hung, then="pass", copied=()):
    """A process that sweeps, and comes to a case that hangs."""
    texts = {
        "root": str(ROOT),
        "clean": page(folder(tmp_path, "clean")),
        "hung": page(folder(tmp_path, "hung"), forward=hung),
        "then": then,
        "copied": copied,
    }
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(**texts)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder(tmp_path, "tmp"))},
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def of_session(session):
    """All live processes that a process and its children have started."""
    found = []
    for one in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            alive = one.status() != psutil.STATUS_ZOMBIE
            if alive and os.getsid(one.pid) == session:
                found.append(one)
    return found


def interrupted(child, kill):
    """What it writes to standard error when it is sent SIGINT; it ends in time."""
    kill(child.pid, signal.SIGINT)
    _, errors = child.communicate(timeout=10)
    return errors


@pytest.mark.parametrize("copied", [(), ("numpy",)], ids=["", "copied"])
@pytest.mark.parametrize("hung", HUNG)
@pytest.mark.parametrize("then", ["pass", "time.sleep(60)"], ids=["waits", "is busy"])
@pytest.mark.parametrize("kill", [os.killpg, os.kill], ids=["terminal", "kill"])
def test_ctrl_c_leaves_neither_process_nor_file(tmp_path, hung, then, kill, copied):
    """A terminal sends SIGINT to the whole group, kill(1) to the one process."""
    with sweeping(tmp_path, hung, then, copied) as child:
        assert child.stdout.readline() == "going\n"
        assert len(of_session(child.pid)) > 1
        assert interrupted(child, kill) == ""
        assert child.returncode == 130
        assert of_session(child.pid) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("delay", [0.2, 0.4, 0.6, 0.8, 1.0])
def test_ctrl_c_at_any_moment_of_the_start_leaves_no_process(tmp_path, delay):
    with sweeping(tmp_path, HUNG[0]) as child:
        time.sleep(delay)
        interrupted(child, os.killpg)
        assert child.returncode != 0
        assert of_session(child.pid) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="others end when they are idle")
@pytest.mark.parametrize("copied", [(), ("numpy",)], ids=["", "copied"])
@pytest.mark.parametrize("hung", HUNG)
def test_workers_end_with_a_parent_that_is_killed(tmp_path, hung, copied):
    with sweeping(tmp_path, hung, copied=copied) as child:
        assert child.stdout.readline() == "going\n"
        workers = of_session(child.pid)
        child.kill()
        _, left = psutil.wait_procs(workers, timeout=10)
        assert (left, of_session(child.pid)) == ([], [])
    assert list((tmp_path / "tmp").iterdir()) == []
