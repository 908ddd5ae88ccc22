"""A case that kills, hangs or fouls its worker costs one verdict and nothing else."""

import contextlib
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

import numpy as np
import psutil
import pytest

from gradwatch.harness.endpoint import DeviceLost
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.workers import pool
from gradwatch.harness.workers.interpreters import (
    interpreter_of,
    variable,
)
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.pool import Fleet, Task
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import UnknownName, load_op
from gradwatch.impls.contract import Op, Problem
from tests.square import DX, page, task

ROOT = Path(__file__).parents[2]
PATIENCE = 2.0  # seconds: a hundred times a case of these, for a busy machine


def sweep(tasks, *, jobs=1, timeout=60.0):
    with Fleet(jobs=jobs) as fleet:
        yield from fleet.run(tasks, timeout=timeout)


@pytest.fixture(scope="module")
def fleet():
    with Fleet() as fleet:
        yield fleet


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_compiles_is_started_first_and_what_crashes_again_and_again_last(jobs):
    one, started = task(Path("page.py")), []
    names = ("numpy_graph", "oneflow_custom", "torch_custom", "jax_custom")
    tasks = [replace(one, backend=name) for name in names]
    with Fleet(jobs=jobs) as fleet:
        fleet._tasks = pool._by_framework(tasks * 3)
        while framework := fleet._framework():
            started.append(framework)
            del fleet._tasks[framework]
    assert started == ["jax", "numpy", "torch", "oneflow"]


def test_a_framework_that_fails_to_start_is_no_error_for_the_others(tmp_path):
    with Fleet(jobs=2) as fleet:
        broken = replace(interpreter_of("numpy"), framework="torch")
        fleet._interpreters["torch"] = broken
        fleet._tasks = {"torch": deque()}
        fleet._failed_to_start("torch", Died("it ended"))
        assert {one.kind for one in fleet.run([task(page(tmp_path))])} == {"result"}


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
    others = [task(clean, case=f"clean {i}") for i in range(before + after)]
    return [*others[:before], task(bad, case="bad"), *others[before:]]


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
        ("while True: pass", "timeout", "no answer in 2 s"),
        ("ctypes.PyDLL(None).sleep(1000)", "timeout", "no answer in 2 s"),
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
    outcomes = {o.task.trial.case: o for o in fleet.run(tasks, timeout=PATIENCE)}
    bad = outcomes.pop("bad")
    assert (bad.kind, bad.result) == (kind, None)
    assert bad.message.startswith(message)
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
    slow = task(page(tmp_path, backward="import time; time.sleep(1.3)"))
    line = Worker(interpreter_of("numpy"), waiting=lambda: seen.append(0.0))
    with contextlib.closing(line):
        assert line.ask(slow.request, **slow.payload())["kind"] == "result"
    assert len(seen) >= 3


def test_a_crash_says_where(tmp_path, fleet):
    tasks = [task(page(tmp_path, backward="\n\nos.abort()"))]
    (outcome,) = fleet.run(tasks, timeout=PATIENCE)
    line = (tmp_path / "square.py").read_text().splitlines().index("        os.abort()")
    assert outcome.message == f"killed by SIGABRT in backward (square.py:{line + 1})"


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
    return f"os.makedirs({str(at)!r} + '/' + str(os.getppid()), exist_ok=True)"


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
    clean = [task(page(tmp_path), case=str(i)) for i in range(100)]
    first = fleet.run(clean)
    next(first)
    first.close()
    again = [task(clean[0].trial.op, case="again")]
    assert [outcome.task.trial.case for outcome in fleet.run(again)] == ["again"]


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
    return task(path, inputs={"x": array}, cotangents=[array])


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
    odd = task(clean.trial.op, inputs={"x": array})
    kinds = [outcome.kind for outcome in fleet.run([clean, odd, clean])]
    assert sorted(kinds) == ["error", "result", "result"]


def test_an_unknown_backend_names_the_nearest(tmp_path, fleet):
    with pytest.raises(UnknownName, match="did you mean 'numpy_manual'"):
        list(fleet.run([task(page(tmp_path), "numpy_manul")]))


def test_no_tasks_have_no_outcomes():
    assert list(sweep([])) == []


def test_a_second_worker_helps_where_much_waits(tmp_path):
    """Each of two tasks waits for a sign of the other: one worker cannot do both."""
    wait = "while not os.path.exists({!r}): time.sleep(0.01)"
    tasks = []
    for mine, other in ("ab", "ba"):
        sign, awaited = str(tmp_path / mine), str(tmp_path / other)
        planted = f"open({sign!r}, 'w').close()\n{wait.format(awaited)}"
        tasks.append(task(page(folder(tmp_path, f"page {mine}"), forward=planted)))
    tasks += [task(page(folder(tmp_path, "clean")))] * pool.WORTH
    outcomes = list(sweep(tasks, jobs=2, timeout=20.0))
    assert {outcome.kind for outcome in outcomes} == {"result"}


def test_a_second_worker_is_not_started_for_a_little_work(tmp_path):
    at = tmp_path / "pid"
    tasks = [task(page(tmp_path, forward=leave_pid(at)))] * 50
    assert len(list(sweep(tasks, jobs=2))) == 50
    assert len(pids(at)) == 1


def some_of(*backends):
    problem = Problem(load_op("square"), {"x": np.ones(3)}, [np.ones(3)])
    trial = Trial("square", "", "", problem)
    return [Task(trial, backend) for backend in backends for _ in range(30)]


def test_a_worker_killed_while_idle_costs_nothing(tmp_path):
    at = tmp_path / "pid"
    tasks = [task(page(tmp_path, forward=leave_pid(at)))]
    with Fleet() as fleet:
        list(fleet.run(tasks))
        os.kill(*pids(at), signal.SIGKILL)
        while not fleet._idle["numpy"].connection.poll(0):
            time.sleep(0.01)
        assert [outcome.kind for outcome in fleet.run(tasks * 3)] == ["result"] * 3


def test_one_worker_of_each_framework_stays_for_the_next_run():
    """Idle it costs nothing, and importing a framework takes seconds."""
    tasks = some_of("torch_custom", "numpy_manual")
    with Fleet(jobs=1) as fleet:
        busy = [len(fleet._busy) for _ in fleet.run(tasks)]
        first = {*fleet._idle.values()}
        assert len(list(fleet.run(tasks))) == len(tasks)
        assert {*fleet._idle.values()} == first
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
        ("import os; os.abort()", "killed by SIGABRT"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import libtorch", "ModuleNotFoundError: No module named 'libtorch'"),
        ("open('libtorch_cpu.so')", "libtorch_cpu.so"),
    ],
)
def test_a_framework_that_cannot_be_imported_is_missing(
    tmp_path, monkeypatch, does, why
):
    """For all of its tasks, while those of others go on."""
    with_torch_that(does, tmp_path, monkeypatch)
    path = page(tmp_path)
    tasks = [task(path, backend) for backend in ("torch_custom", "numpy_manual")] * 3
    with Fleet(jobs=2) as fleet:
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
        Task(
            Trial("dot", "", "", Problem(DOT, {"a": a, "b": a}, [np.ones(())])), backend
        )
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
    tasks = [task("square", f"{f}_formula", case=f) for f in frameworks if f != "numpy"]
    tasks += [task("square", "numpy_graph", case="numpy")]
    outcomes = {o.task.trial.case: o for o in sweep(tasks, jobs=2)}
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
    with Fleet(jobs=2) as fleet:
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
def sweeping(tmp_path, hung, then="pass"):
    """A process that sweeps, and comes to a case that hangs."""
    texts = {
        "root": str(ROOT),
        "clean": page(folder(tmp_path, "clean")),
        "hung": page(folder(tmp_path, "hung"), forward=hung),
        "then": then,
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


#: Each two of what hangs, what its parent does meanwhile, and who is interrupted.
ENDS = [
    (HUNG[0], "pass", os.killpg),
    (HUNG[0], "time.sleep(60)", os.kill),
    (HUNG[1], "pass", os.kill),
    (HUNG[1], "time.sleep(60)", os.killpg),
]


@pytest.mark.parametrize(("hung", "then", "kill"), ENDS)
def test_ctrl_c_leaves_neither_process_nor_file(tmp_path, hung, then, kill):
    """A terminal sends SIGINT to the whole group, kill(1) to the one process."""
    with sweeping(tmp_path, hung, then) as child:
        assert child.stdout.readline() == "going\n"
        assert len(of_session(child.pid)) > 1
        assert interrupted(child, kill) == ""
        assert child.returncode == 130
        assert of_session(child.pid) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.parametrize("delay", [0.2, 0.6, 1.0])
def test_ctrl_c_at_any_moment_of_the_start_leaves_no_process(tmp_path, delay):
    with sweeping(tmp_path, HUNG[0]) as child:
        time.sleep(delay)
        interrupted(child, os.killpg)
        assert child.returncode != 0
        assert of_session(child.pid) == []
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="others end when they are idle")
@pytest.mark.parametrize("hung", HUNG)
def test_workers_end_with_a_parent_that_is_killed(tmp_path, hung):
    with sweeping(tmp_path, hung) as child:
        assert child.stdout.readline() == "going\n"
        workers = of_session(child.pid)
        child.kill()
        _, left = psutil.wait_procs(workers, timeout=10)
        assert (left, of_session(child.pid)) == ([], [])
    assert list((tmp_path / "tmp").iterdir()) == []
